"""Faults of what is noted of a model between two products, kept during a pass, and shared by threads."""

from tests.mutants.mutant import Mutant

_FORM, _SUMS = "curvature/model_state/form.py", "curvature/model_state/checksums.py"
_KEPT, _AROUND = "curvature/model_state/untouched.py", "curvature/model_state/surroundings.py"
_ASKED = "curvature/test_stale.py::test_a_changed_model_gets_the_product_of_a_new_problem"
_WRITTEN = "curvature/test_untouched.py"
_THREADS = "curvature/test_threads.py"

STALE = (
    Mutant(
        "versions are not asked for",
        file="curvature/products/problem.py",
        find="t.data_ptr(), t._version",
        replace="t.data_ptr(), 0",
        tests=("curvature/test_stale.py::test_versions_see_what_checksums_round_away",),
    ),
    Mutant(
        "a model that has other parts keeps its plan",
        file="curvature/products/problem.py",
        find="        if self._form != before:",
        replace="        if not before:",
        tests=("curvature/test_stale.py::test_a_plan_is_of_the_model_as_it_is",),
    ),
    Mutant(
        "attributes of modules are not walked",
        file=_FORM,
        find="            if name not in INTERNAL:\n                self._add(name, value)",
        replace="            if name not in INTERNAL:\n                self._add(name)",
        tests=(f"{_ASKED}[number]", f"{_ASKED}[dataclass in namespace]"),
    ),
    Mutant(
        "hooks are not walked",
        file=_FORM,
        find="            if own[hooks]:",
        replace="            if not own:",
        tests=(f"{_ASKED}[hook in front]",),
    ),
    Mutant(
        "cells around a function are not walked",
        file=_FORM,
        find="self._add(cell.cell_contents)",
        replace="pass",
        tests=(f"{_ASKED}[what a hook holds]",),
    ),
    Mutant(
        "variables that a function reads are not walked",
        file=_FORM,
        find="            if not isinstance(value, types.ModuleType):\n                self._add(value)",
        replace="            if not isinstance(value, types.ModuleType):\n                pass",
        tests=(f"{_ASKED}[global]",),
    ),
    Mutant(
        "checksums are blind to the order of entries",
        file=_SUMS,
        find="return (signs * sizes).to(device, dtype)",
        replace="return torch.ones_like(sizes).to(device, dtype)",
        tests=(f"{_ASKED}[order of the weights]",),
    ),
    Mutant(
        "masks of minus infinity never have the same checksum",
        file=_SUMS,
        find="    if math.isfinite(found) or",
        replace="    if True or",
        tests=("curvature/test_stale.py::test_checksums_of_masks_and_of_what_overflows",),
    ),
    Mutant(
        "autocast rounds products",
        file=_AROUND,
        find="if torch.is_autocast_enabled(device.type):",
        replace="if False:",
        tests=("curvature/test_stale.py::test_autocast_around_a_question_is_refused",),
    ),
    Mutant(
        "weights come from a cache",
        file=_AROUND,
        find="if parametrize._cache_enabled and",
        replace="if False and",
        tests=("curvature/test_stale.py::test_weights_from_a_cache_are_refused",),
    ),
    Mutant(
        "a last layer may run twice",
        file="curvature/last_layer/forward_pass.py",
        find="        met.add(id(module))",
        replace="        pass",
        tests=("curvature/test_stale.py::test_a_last_layer_that_runs_twice_is_refused",),
    ),
    Mutant(
        "small buffers are written where they lie",
        file=_KEPT,
        find="tensor.nbytes <= SMALL",
        replace="tensor.nbytes < 0",
        tests=(_WRITTEN,),
    ),
    Mutant(
        "what a pass wrote is not put back",
        file=_KEPT,
        find="tensor.data.copy_(kept)",
        replace="pass",
        tests=(_WRITTEN,),
    ),
    Mutant(
        "trained weights that are written are measured",
        file=_KEPT,
        find="            if parameter is not None and parameter.requires_grad:",
        replace="            if parameter is None:",
        tests=(_WRITTEN,),
    ),
    Mutant(
        "contents of containers stay changed",
        file=_KEPT,
        find="            _refill(container, content)\n        for name",
        replace="            pass\n        for name",
        tests=(_WRITTEN,),
    ),
    Mutant(
        "layers that merge their weights are measured merged",
        file=_KEPT,
        find="        if not self.writes.merges:\n            self._model.eval()",
        replace="        if self.writes:\n            self._model.eval()",
        tests=(_WRITTEN,),
    ),
    Mutant(
        "a graph of the pass that found a write is used",
        file="curvature/products/problem.py",
        find="if len(writes_of(self.model).written) > known:",
        replace="if False:",
        tests=(_WRITTEN,),
    ),
    Mutant(
        "a model is measured by several threads at once",
        file="curvature/model_state/threads.py",
        find="    with own:\n        yield",
        replace="    yield",
        tests=(_THREADS,),
    ),
    Mutant(
        "the first thread out undoes what holds for all",
        file="curvature/closed/shared.py",
        find="            if not self._inside and self._made",
        replace="            if self._made",
        tests=(_THREADS,),
    ),
    Mutant(
        "watches are taken off by value",
        file="curvature/closed/watch.py",
        find="@dataclass(eq=False)",
        replace="@dataclass",
        tests=(_THREADS,),
    ),
)
