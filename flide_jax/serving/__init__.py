"""What stands between the engine and the wire: `strict_json` (bytes to values), `protocol` (System One)."""
