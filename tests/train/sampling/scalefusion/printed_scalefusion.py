"""Algorithm 1 of the ScaleFusion paper as printed, with the ranges of its loops as they stand.

Pieces are named by the subscript of the tensor that is sent. Two slips are read as they are meant, in the paper's
favour, where a flag does not ask otherwise: line 6 sends x_{:,i,i} for piece (i, j), and line 17 sends x for y.
"""

from reelweave.train.sampling.scalefusion.schedule import Compute, Operation, PieceLaunch, Slicing, Wait


def printed(slicing: Slicing, pairs: int, literal: bool = False) -> list[Operation]:
    N_T, N_S, L_T, L_S = slicing
    operations: list[Operation] = []
    for i in range(N_S):  # lines 4 to 6
        operations += [PieceLaunch(0, i if literal else j, i) for j in range(L_T)]
    for pair in range(pairs):
        spatial, temporal = 2 * pair, 2 * pair + 1
        for i in range(L_T, N_T):  # 8 to 10
            operations += [PieceLaunch(spatial, i, j) for j in range(L_S, N_S)]
        for i in range(N_T):  # 11 to 15
            operations += [Wait(spatial, i), Compute(spatial, i)]
            operations += [PieceLaunch(temporal, j, i) for j in range(L_S)]
        for i in range(L_S, N_S):  # 16 to 18
            operations += [PieceLaunch(temporal, i, j) for j in range(L_T, N_T)]
        for i in range(N_S):  # 19 to 25
            operations += [Wait(temporal, i), Compute(temporal, i)]
            if pair + 1 < pairs:
                operations += [PieceLaunch(spatial + 2, j, i) for j in range(L_T)]
    return operations
