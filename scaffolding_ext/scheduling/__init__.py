"""Who is served first among the programs that wait, and the line in which they wait.

The host and `BudgetedWorker` order by a policy; engines that know priorities are told them.
"""
