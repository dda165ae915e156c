"""Storage formats: bytes as packed, nearest levels, and other libraries as witnesses."""

import importlib.util
import math
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import hessblocks as hb
from hessblocks.errors import ArgumentError
from hessblocks.settings import FORMATS, SIZES
from hessblocks.tensor_formats import KINDS, MIXES, format, mix
from hessblocks.tensor_formats.floats import E2M1, NORMAL

NEEDS = {"gguf": "libgguf", "torchao": "torchao"}
ERROR = {"2": 0.6, "3": 0.3, "4": 0.14, "5": 0.08, "6": 0.04, "7": 0.02, "8": 0.03}
"""Bits → largest ‖Δ‖ / ‖w‖ of normal weights."""


def weight() -> torch.Tensor:
    found = 0.02 * torch.randn(24, 512, generator=torch.Generator().manual_seed(0))
    found[3], found[5, :64] = 0, 0
    return found


def stored(packed: Any) -> int:
    if isinstance(packed, Mapping):
        return sum(map(stored, packed.values()))
    parts = [getattr(packed, name) for name in getattr(packed, "tensor_data_names", ())] or [packed]
    return sum(part.numel() * part.element_size() for part in parts)


@pytest.fixture(params=hb.formats())
def chosen(request: pytest.FixtureRequest) -> hb.Format:
    if package := NEEDS.get(request.param.partition(":")[0]):
        pytest.importorskip(package)
    return hb.formats()[request.param]


def test_a_format_stores_the_bytes_that_it_says(chosen: hb.Format) -> None:
    rows = weight()
    packed = chosen.pack(rows, None)
    assert stored(packed) == chosen.bytes(rows.shape)
    again = chosen.unpack(packed, rows.shape)
    assert again.dtype == torch.float32
    assert again.shape == rows.shape
    assert torch.equal(again, chosen.rounded(rows))
    assert torch.equal(again[3], rows[3])
    bits = next((digit for digit in chosen.name if digit in ERROR), "8")
    assert 0 < float((again - rows).norm() / rows.norm()) < ERROR[bits]


def test_any_leading_axes_are_rounded_along_the_last(chosen: hb.Format) -> None:
    rows = weight()
    if chosen.name == "nvfp4":
        pytest.skip("has one scale for the whole tensor, which is any shape's")
    assert torch.equal(chosen.rounded(rows.view(2, 12, 512)).view(24, 512), chosen.rounded(rows))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_llama_cpps_types_are_those_of_its_own_package(kind: str) -> None:
    pytest.importorskip("libgguf")
    gguf = pytest.importorskip("gguf")
    rows, own = weight(), hb.formats()[f"gguf:{kind}"]
    theirs = gguf.quants.quantize(rows.numpy(), gguf.GGMLQuantizationType[kind])
    assert np.array_equal(own.pack(rows, None).numpy(), theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpps_types_are_read_as_its_own_package_reads_them(kind: str) -> None:
    pytest.importorskip("libgguf")
    gguf = pytest.importorskip("gguf")
    rows, own = weight(), hb.formats()[f"gguf:{kind}"]
    packed = own.pack(rows, torch.rand(512) + 0.1)
    theirs = gguf.quants.dequantize(packed.numpy(), gguf.GGMLQuantizationType[kind])
    assert np.array_equal(own.unpack(packed, rows.shape).numpy(), theirs)


def test_errors_are_weighed_by_importance() -> None:
    pytest.importorskip("libgguf")
    rows, own = weight()[:2], hb.formats()["gguf:Q4_0"]
    importance = torch.ones(512)
    importance[::32] = 1e4
    plain, weighed = ((own.rounded(rows, i) - rows)[:, ::32].norm() for i in (None, importance))
    assert weighed < 0.8 * plain


@pytest.mark.parametrize("bits", range(2, 9))
def test_integers_are_packed_as_compressed_tensors_packs_them(bits: int) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    codes = torch.randint(0, 2**bits, (6, 64), dtype=torch.uint8)
    theirs = pack_to_int32((codes.int() - 2 ** (bits - 1)).to(torch.int8), bits)
    assert torch.equal(format.bit_packed(codes, bits).view(torch.int32), theirs)
    assert torch.equal(format.bit_unpacked(format.bit_packed(codes, bits), bits, 64), codes)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_mlx_keeps_the_levels_of_a_group_and_zero(bits: int) -> None:
    steps = 2**bits - 1
    codes = torch.randint(0, steps + 1, (4, 64)).float()
    codes[:, 0], codes[:, 1] = 0, steps
    rows = 0.25 * codes - 0.25 * (steps // 2)  # a step and a bias that 16 bits hold
    assert torch.equal(hb.formats()[f"mlx:{bits}"].rounded(rows), rows)


@pytest.mark.parametrize(("name", "levels", "block"), [("nf4", NORMAL, 64), ("nvfp4", E2M1, 16)])
def test_the_nearest_level_is_taken(name: str, levels: tuple[float, ...], block: int) -> None:
    rows = weight()[:2]
    own = hb.formats()[name]
    packed = own.pack(rows, None)
    step = packed["scales"].float() * packed.get("scale", torch.ones(()))
    groups = rows.view(-1, block)
    near = (groups[..., None] - step[..., None] * torch.tensor(levels)).abs().amin(-1)
    far = (own.rounded(rows).view(-1, block) - groups).abs()
    assert torch.allclose(far, near, atol=1e-9)


def test_mxfp4_is_that_of_llama_cpp() -> None:
    pytest.importorskip("libgguf")
    rows, names = weight(), hb.formats()
    assert torch.equal(names["mxfp4"].rounded(rows), names["gguf:MXFP4"].rounded(rows))


def test_a_shape_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"mlx:4: does not fit a tensor of \(3, 60\)"):
        hb.formats()["mlx:4"].rounded(torch.zeros(3, 60))


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libgguf", None)
    if importlib.util.find_spec("gguf"):
        with pytest.raises(ArgumentError, match="types needs the package libgguf: pip install"):
            hb.formats()["gguf:Q4_0"].rounded(torch.zeros(1, 32))


def shapes(width: int, layers: int, heads: int = 3) -> dict[str, tuple[int, int]]:
    roles = {"attn_q": width, "attn_k": width // heads, "attn_v": width // heads}
    roles |= dict.fromkeys(("attn_output", "ffn_gate", "ffn_up", "ffn_down"), width)
    inner = {f"blk.{i}.{r}.weight": (n, width) for i in range(layers) for r, n in roles.items()}
    return {"token_embd.weight": (999, width), **inner}


def test_mixes_follow_llama_cpps_rules() -> None:
    pytest.importorskip("gguf")
    wide = mix("Q4_K_M", shapes(768, 32))
    assert wide["token_embd.weight"] == "gguf:Q6_K"  # tied: it is the head
    more = {i for i in range(32) if wide[f"blk.{i}.ffn_down.weight"] == "gguf:Q6_K"}
    assert more == {*range(4), 6, 9, 12, 15, 18, 21, 24, 27, *range(28, 32)}
    assert {wide[f"blk.{i}.attn_q.weight"] for i in range(32)} == {"gguf:Q4_K"}
    assert mix("IQ4_NL", shapes(768, 32, heads=4))["blk.9.attn_v.weight"] == "gguf:Q5_K"
    assert mix("Q2_K", shapes(768, 32))["blk.9.attn_output.weight"] == "gguf:Q3_K"
    untied = {**shapes(768, 32), "output.weight": (999, 768)}
    assert mix("Q4_0", untied)["token_embd.weight"] == "gguf:Q4_0"


@pytest.mark.parametrize(("name", "bits"), [("IQ4_NL", 5.342), ("Q4_K_M", 6.157)])
def test_the_mixes_of_smollm2_have_the_sizes_of_llama_cpps_files(name: str, bits: float) -> None:
    """Rows of 576 and of 1,536; the sizes are those of files of llama.cpp b11434."""
    pytest.importorskip("gguf")
    roles = {"attn_q": (576, 576), "attn_k": (192, 576), "attn_v": (192, 576)}
    roles |= {"attn_output": (576, 576), "ffn_gate": (1536, 576), "ffn_up": (1536, 576)}
    roles |= {"ffn_down": (576, 1536)}
    found = {f"blk.{i}.{r}.weight": s for i in range(30) for r, s in roles.items()}
    found["token_embd.weight"] = (49152, 576)
    chosen, own = mix(name, found), hb.formats()
    size = sum(own[kind].bytes(found[tensor]) for tensor, kind in chosen.items())
    assert 8 * size / sum(map(math.prod, found.values())) == pytest.approx(bits, abs=2e-3)


CHOSEN = {
    "Q2_K_S": "Q2_K:21 Q4_0:120 Q4_K:3 Q5_0:24 Q8_0:1",
    "Q2_K": "Q3_K:24 Q4_0:120 Q5_0:24 Q8_0:1",
    "Q3_K_S": "Q3_K:24 Q4_0:144 Q8_0:1",
    "Q3_K_M": "Q4_0:96 Q4_K:23 Q5_0:46 Q5_1:2 Q5_K:1 Q8_0:1",
    "Q3_K_L": "Q4_0:96 Q5_1:48 Q5_K:24 Q8_0:1",
    "IQ4_XS": "IQ4_NL:120 IQ4_XS:24 Q5_1:24 Q8_0:1",
    "Q4_0": "Q4_0:165 Q4_1:3 Q8_0:1",
    "IQ4_NL": "IQ4_NL:144 Q5_1:24 Q8_0:1",
    "Q4_1": "Q4_1:168 Q8_0:1",
    "Q4_K_S": "Q4_K:21 Q5_0:140 Q5_1:4 Q5_K:3 Q8_0:1",
    "Q4_K_M": "Q4_K:12 Q5_0:132 Q6_K:12 Q8_0:13",
    "Q5_0": "Q5_0:165 Q5_1:3 Q8_0:1",
    "Q5_1": "Q5_1:168 Q8_0:1",
    "Q5_K_S": "Q5_1:144 Q5_K:24 Q8_0:1",
    "Q5_K_M": "Q5_1:132 Q5_K:12 Q6_K:12 Q8_0:13",
    "Q6_K": "Q6_K:24 Q8_0:145",
    "Q8_0": "Q8_0:169",
}
"""Mix → numbers of types that llama.cpp 0.5.0 chose, with an importance matrix, for 24 layers with
rows of 288 and 512 entries and four query heads a key head."""


def test_mixes_are_those_of_llama_cpp_itself() -> None:
    pytest.importorskip("gguf")
    found = shapes(288, 24, heads=4) | {f"blk.{i}.ffn_down.weight": (288, 512) for i in range(24)}
    for name in MIXES:
        counted = Counter(kind.removeprefix("gguf:") for kind in mix(name, found).values())
        assert " ".join(f"{kind}:{n}" for kind, n in sorted(counted.items())) == CHOSEN[name], name
    assert tuple(MIXES) == SIZES["gguf"]  # repeated there without torch
    assert tuple(hb.formats()) == FORMATS


def test_formats_are_found_in_lower_case_and_near_names_are_told() -> None:
    assert hb.in_format("GGUF:q4_k").how == "gguf:Q4_K"
    with pytest.raises(ArgumentError, match=r"'q4_k' is unknown; did you mean .*'gguf:Q4_K'"):
        hb.in_format("q4_k")


def test_every_mix_fits_rows_of_blocks() -> None:
    pytest.importorskip("gguf")
    for name in MIXES:
        for tensor, kind in mix(name, shapes(96, 8)).items():
            assert hb.formats()[kind].fits(shapes(96, 8)[tensor])
