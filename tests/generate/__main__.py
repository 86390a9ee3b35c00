"""Write every generated file: what `make gen` runs, and what `make verify` runs to find stale ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

from berth.api.crd import write_crds
from generate.reference import write_reference

CHECKOUT = Path(__file__).parents[2]

GENERATORS: Sequence[Callable[[], None]] = (
    lambda: write_crds(CHECKOUT / "crds"),
    # Helm reads a chart's kinds from the chart itself.
    lambda: write_crds(CHECKOUT / "charts" / "berth" / "crds"),
    write_reference,
)

for generate in GENERATORS:
    generate()
