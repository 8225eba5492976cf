"""The prefix_index service: knows who holds which prefix, by what the workers say of their caches, in Redis."""

import sys

from pdd.core.ids import Role
from pdd.runtime.lifecycle import run_main
from pdd.runtime.settings import IndexSettings
from pdd.wiring.prefix_index import serve_index

if __name__ == "__main__":
    sys.exit(run_main(IndexSettings, Role.INDEX, serve_index))
