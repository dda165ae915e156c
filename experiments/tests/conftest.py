"""The command line in a test, as the tests of the library have it."""

from tests.cli.conftest import code, shared_cache, shell  # noqa: F401
