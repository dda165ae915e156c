"""Optional dependencies of the studies."""

from importlib import import_module

from hessblocks.errors import ArgumentError


def check_extra(feature: str, extra: str, package: str) -> None:
    """Refuse a feature whose optional dependency is not installed.

    Args:
        feature: feature that needs the extra, for the message.
        extra: name of the extra in `pip install 'hessblocks-studies[...]'`.
        package: package of the extra; it is imported.

    Raises:
        ArgumentError: the package is missing, or cannot be imported.
    """
    try:
        import_module(package)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == package
        state = "is not installed" if missing else f"cannot be imported ({error})"
        raise ArgumentError(
            f"{feature}: {package} {state}; run pip install 'hessblocks-studies[{extra}]'."
        ) from error
