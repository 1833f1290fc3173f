"""One short file for each protocol, which translates messages; below them the servers: `websocket`, `zmtp` and `rpc`."""
