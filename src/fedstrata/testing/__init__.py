"""Checks for authors: whether a method, a task or a reader of one's own keeps its contract.

Each check runs the real engine on the small model that comes with fedstrata, takes up to a minute, and raises
`ContractError` with every clause that does not hold. In a test of one's own:

    def test_it_keeps_the_contract():
        fs.testing.check_method(MyMethod(mu=0.5))
"""

from fedstrata.testing.contract import ContractError
from fedstrata.testing.methods import check_method
from fedstrata.testing.readers import check_reader
from fedstrata.testing.tasks import check_task

__all__ = ["ContractError", "check_method", "check_reader", "check_task"]
