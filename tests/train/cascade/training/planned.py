"""A plan made at import, so that ranks which are forked behind it find the planner's loops in memory."""

from reelweave.train.cascade.planners.plan import plan
from tests.train.cascade.planners.problems import random_problem

plan(random_problem(0), effort=0.01)
