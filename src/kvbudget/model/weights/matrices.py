"""Decides what the weights of one layer are made of: matrices that quantisation shrinks, and the rest."""

from typing import NamedTuple


class Matrix(NamedTuple):
    """One linear layer, `copies` of them when it stands for the same matrix of every expert.

    `name`: as in the checkpoint, after `layers.N.`. `ranks`: at most so many tensor-parallel ranks share it (KV heads,
    Mamba groups); 0 any number, 1 every rank holds it whole.
    """

    name: str
    rows: int
    columns: int
    copies: int = 1
    ranks: int = 0

    @property
    def parameters(self) -> int:
        """How many."""
        return self.rows * self.columns * self.copies

    def sharers(self, tensor_parallel: int) -> int:
        """How many ranks of so many share it."""
        return min(self.ranks, tensor_parallel) if self.ranks else tensor_parallel


class LayerWeights(NamedTuple):
    """One layer. `whole` and `split` count parameters that no format shrinks: on every rank, or shared by all ranks.

    `second_copy`: elements that the engine keeps once more in its own type (MLA's absorbed projections), shared.
    """

    matrices: tuple[Matrix, ...] = ()
    whole: int = 0
    split: int = 0
    second_copy: int = 0

    @property
    def parameters(self) -> int:
        """How many, in the whole layer."""
        return sum(matrix.parameters for matrix in self.matrices) + self.whole + self.split


class Parts:
    """Collects what becomes a LayerWeights."""

    __slots__ = ("matrices", "second_copy", "split", "whole")

    def __init__(self) -> None:
        self.matrices: list[Matrix] = []
        self.whole = 0
        self.split = 0
        self.second_copy = 0

    def matrix(self, name: str, rows: int, columns: int, copies: int = 1, ranks: int = 0) -> None:
        """Add one linear layer with `rows` outputs and `columns` inputs."""
        if rows and columns and copies:
            self.matrices.append(Matrix(name, rows, columns, copies, ranks))

    def result(self) -> LayerWeights:
        """What was collected."""
        return LayerWeights(tuple(self.matrices), self.whole, self.split, self.second_copy)
