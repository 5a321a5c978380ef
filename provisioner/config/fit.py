"""The section ``job.fit``: what ``failover fit --yaml`` measured of the training."""

from typing import Annotated, Literal

from pydantic import Field

from provisioner.config.section import Names, Section
from provisioner.fitting import Measured, Passes

_Bytes = Annotated[float, Field(ge=0, le=1e18)]


class LineConfig(Section):
    """Bytes that grow with the micro-batch."""

    fixed: Annotated[float, Field(ge=-1e18, le=1e18)] = Field(description="Bytes whatever the micro-batch.")
    each: _Bytes = Field(description="Bytes more for each sample of it.")


class PassesConfig(Section):
    """Forward and backward of a micro-batch, done in one way."""

    peak: Annotated[Names[LineConfig], Field(min_length=1)] = Field(
        description="Memory at the peak, beside weights, gradients and optimizer state: the highest of these lines."
    )
    moved: LineConfig = Field(description="What kernels read and write.")
    kernels: Annotated[int, Field(ge=0, le=10**9)] = Field(description="Kernels that are started.")
    flops: _Bytes | None = Field(
        default=None, description="FLOPs of matrix products for a sample. Left out, no time can be told."
    )


class FitConfig(Section):
    """What the training needs of a card. `failover fit SCRIPT --yaml` writes it; all sizes are bytes.

    Cards whose memory cannot hold the job are passed over, and how fast cards are beside each other is reckoned from it
    (`job.estimate.speeds` counts before).
    """

    batch: Annotated[int, Field(ge=1, le=10**9)] = Field(description="Samples of a step.")
    weights: _Bytes = Field(description="Parameters and buffers.")
    gradients: _Bytes = Field(description="Gradients of the parameters that are trained.")
    optimizer: _Bytes = Field(description="State of the optimizer.")
    inputs: _Bytes = Field(description="One sample.")
    ways: Annotated[
        dict[Literal["float32", "half", "float32+checkpointing", "half+checkpointing"], PassesConfig],
        Field(min_length=1),
    ] = Field(description="The passes in each way that was measured; `half`: bfloat16 or float16, as the card has it.")

    def measured(self) -> Measured:
        """Return the values to reckon with."""
        return Measured(
            batch=self.batch,
            weights=int(self.weights),
            gradients=int(self.gradients),
            optimizer=int(self.optimizer),
            inputs=int(self.inputs),
            ways={
                name: Passes(
                    peak=tuple((line.fixed, line.each) for line in one.peak),
                    moved=(one.moved.fixed, one.moved.each),
                    kernels=one.kernels,
                    flops=one.flops,
                )
                for name, one in self.ways.items()
            },
        )
