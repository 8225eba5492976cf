"""A container's health: 0 where this container's service answers /ready with 200. Standard library only, and quick to start."""

import os
import sys
from http.client import HTTPConnection, HTTPException

PATIENCE_S = 2.0


def ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if ready(int(os.environ["PDD_HTTP_PORT"])) else 1)
