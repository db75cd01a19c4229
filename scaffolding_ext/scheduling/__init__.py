"""Who is served first among the programs that wait: one policy a module, and their simulation.

The host and `BudgetedWorker` order by them; engines that know priorities are told them.
"""

from scaffolding_ext.scheduling.base import Policy as Policy
from scaffolding_ext.scheduling.earliest_deadline import EarliestDeadline as EarliestDeadline
from scaffolding_ext.scheduling.fifo import Fifo as Fifo
from scaffolding_ext.scheduling.gang import Gang as Gang
from scaffolding_ext.scheduling.least_attained import LeastAttained as LeastAttained
from scaffolding_ext.scheduling.shortest_remaining import ShortestRemaining as ShortestRemaining
