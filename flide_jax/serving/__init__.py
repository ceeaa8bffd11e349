"""What stands between the engine and the wire: `strict_json` (bytes to values) and `protocol` (System One), which the
command line reads with too; then the server, from the inside out: `service`, `app`, `server`,
`open_server`.

A server is one process, or one that holds the device (`local_device`, `front_ends`) and several that hold none
(`worker`, `remote_device`), between which go `frames`.
"""
