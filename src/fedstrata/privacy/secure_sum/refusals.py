"""Why a site or a server of a masked sum goes no further; after any of these nothing more was given away."""

from fedstrata.core.errors import RefusedError


class SecureSumRefusal(RefusedError):
    """Something about a masked sum is not as it has to be; the message says what, and what can be done."""


class OutOfOrder(SecureSumRefusal):
    """An exchange was asked for before its turn, or a second time."""

    code = "out_of_order"


class WrongSum(SecureSumRefusal):
    """A message belongs to another masked sum."""

    code = "wrong_sum"


class TooFewSites(SecureSumRefusal):
    """Fewer sites than a sum needs for hiding each."""

    code = "too_few_sites"


class WrongThreshold(SecureSumRefusal):
    """A server asks for fewer shares than a site's own lock demands, or for more than there are sites."""

    code = "wrong_threshold"


class UnpinnedSite(SecureSumRefusal):
    """A site is not in the federation lock, or has another identity there."""

    code = "not_pinned"


class ForgedKeys(SecureSumRefusal):
    """Keys are not signed by the identity that the lock has for their site."""

    code = "not_signed"


class ReplayedKeys(SecureSumRefusal):
    """Keys were signed for another masked sum."""

    code = "other_keys"


class RosterChanged(SecureSumRefusal):
    """The sites of a sum, or their keys, are not those that a site has answered to."""

    code = "roster_changed"


class ForgedShares(SecureSumRefusal):
    """An encrypted share was not made by its sender for this receiver and this sum."""

    code = "forged_shares"


class AttemptNotHigher(SecureSumRefusal):
    """A sum is asked for under a number that was used, or is lower than one that was."""

    code = "attempt_not_higher"


class AlreadyReleased(SecureSumRefusal):
    """The same was released with other survivors: the difference of two sums would be a single update."""

    code = "already_released"


class RoundNotNew(SecureSumRefusal):
    """A sum of an earlier round than the last one that a site has released."""

    code = "round_over"


class BothShares(SecureSumRefusal):
    """A second set of survivors, with which both shares of a site would leave."""

    code = "would_reveal"


class TranscriptMismatch(SecureSumRefusal):
    """Sites do not agree: on settings, name, roster, model, plan, shapes or survivors."""

    code = "transcript_mismatch"


class TooFewSignatures(SecureSumRefusal):
    """Fewer sites than the threshold have signed what is summed."""

    code = "too_few_signatures"


class SharesDoNotFit(SecureSumRefusal):
    """Shares do not give the secret that a site has committed itself to.

    Args:
        message: What is wrong.
        dealer: The site that dealt false shares, if it can be told from one that released a false one.
        code: As for any of our errors.
    """

    code = "shares_do_not_fit"

    def __init__(self, message: str, dealer: str | None = None, *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.dealer = dealer


class UnusableSum(SecureSumRefusal):
    """A sum was released and cannot be used: a site has lied about its weight, or has dealt false shares."""

    code = "unusable_sum"


class NotFinished(SecureSumRefusal):
    """Shares of a sum have left, and too few to unmask it: only the same sites may make it again."""

    code = "sum_not_finished"


class SessionLost(SecureSumRefusal):
    """A site's process no longer has what it began a sum with: it has dropped out."""

    code = "sum_lost"
