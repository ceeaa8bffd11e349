"""What stands between the engine and the wire: `strict_json` (bytes to values) and `protocol` (System One), which the
command line reads with too; then the server, from the inside out: `service`, `app`, `server`.
"""
