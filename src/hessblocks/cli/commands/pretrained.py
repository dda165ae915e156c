"""Commands that measure a saved model in a run folder: quantise, price, simplify, curvature."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hessblocks import settings
from hessblocks.cli import checks, options


def quantise(
    source: options.Model,
    file: Annotated[
        Path,
        options.checked(
            lambda file: "" if file.exists() else checks.out(file),
            name="FILE",
            help="GGUF file or folder to write.",
        ),
    ],
    /,
    *,
    data: options.Text,
    settings: settings.QuantisingSettings,
    out: Annotated[Path | None, options.out_of("quantise-MODEL-SIZE")] = None,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Quantise a model into a file of a given size, at the least KL divergence, and measure it."""
    settings.check_file(file, out)
    given = {"source": source, "data": data, "file": file, "out": out, "device": device}
    _measure("quantise", "inspection:measure_quantise", given, settings, screen)


def price(
    source: options.Model,
    /,
    *,
    data: options.Text,
    settings: settings.PricingSettings,
    out: Annotated[Path | None, options.out_of("price-MODEL or cache-MODEL")] = None,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Forecast the cost of weight changes in nats per token, check it, and allocate bits."""
    settings.check_chosen()
    files = {"source": source, "data": data, "out": out}
    _measure("price", "inspection:measure_price", {**files, "device": device}, settings, screen)


def simplify(
    source: Annotated[
        options.Model,
        Parameter(
            help=f"{options.SAVED}: Llama, Mistral, Qwen2, Qwen3, GPT-2, GPT-NeoX, or a model of "
            "blocks."
        ),
    ],
    /,
    *,
    data: options.Text,
    settings: settings.SimplifySettings,
    out: Annotated[Path | None, options.out_of("simplify-MODEL")] = None,
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Measure the cost of removing each part of a model, remove the cheapest, refit the rest."""
    files = {"source": source, "data": data, "out": out}
    _measure("simplify", "simplify:simplify_model", {**files, "device": device}, settings, screen)


def curvature(
    source: Annotated[
        str,
        options.checked(
            checks.models,
            name="MODEL",
            help="A folder that save_pretrained wrote, a GGUF file, a name in the local Hugging "
            "Face cache, or preset:NAME for a block of `hessblocks presets` at initialisation.",
        ),
    ],
    /,
    *,
    settings: settings.CurvatureInspection,
    out: Annotated[Path, options.out_of("curvature-MODEL")] = Path("runs", "curvature-{model}"),
    device: options.Device = "auto",
    screen: options.Screen,
) -> None:
    """Measure norms, map and eigenvalues of the Hessian, by layer and role.

    --depth to --vocab-size are for presets.
    """
    settings.check_heads([source] if source.startswith(checks.PREFIX) else [])
    given = {"model": source, "out": out, "device": device}
    _measure("curvature", "inspection:measure_curvature", given, settings, screen)


def _measure(
    command: str, function: str, given: dict[str, Any], settings: Any, screen: options.Screen
) -> None:
    """Check the length of the text, and call what measures in a folder."""
    given |= asdict(settings)
    checks.check_length(given["data"], settings.sequences, settings.tokens)
    checks.check_run(command, given["out"])
    from hessblocks.cli.commands.work import measure_in_folder

    measure_in_folder(command, function, given, as_json=screen.json)
