"""A cache of each test's own, and a little text, as the tests of the library have them."""

from tests.data.conftest import cache, code  # noqa: F401
