"""Who is served first among the programs that wait, and the line in which they wait.

The host and `BudgetedWorker` order by a policy; engines that know priorities are told them.
"""

from scaffolding_ext.scheduling.base import Policy as Policy
from scaffolding_ext.scheduling.policies import EarliestDeadline as EarliestDeadline
from scaffolding_ext.scheduling.policies import Fifo as Fifo
from scaffolding_ext.scheduling.policies import Gang as Gang
from scaffolding_ext.scheduling.policies import LeastAttained as LeastAttained
from scaffolding_ext.scheduling.policies import ShortestRemaining as ShortestRemaining
