"""The code of every `Problem` and every error of fedstrata, for programs and tests."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

CODES: Mapping[str, str] = MappingProxyType(
    {
        "already_released": "The site has already released this masked sum.",
        "ambiguous": "The input matches more than one choice.",
        "attempt_not_higher": "The number of an attempt at a masked sum is not higher than the last one.",
        "attempt_over": "A later attempt at the masked sum has begun.",
        "budget_refused": "The privacy budget of a site does not allow it.",
        "budget_spent": "The privacy budget of a client is spent.",
        "changed": "A value differs from the one with which the run began.",
        "clients_lost": "Too few clients of a round can deliver.",
        "conflict": "Two values exclude each other.",
        "connection_refused": "No process listens at the address of the server.",
        "cut_short": "A message or file ends too early.",
        "damaged": "A file is corrupt.",
        "dependency_too_new": "The installed version of a library cannot do this.",
        "diverged": "Training diverged: a number is no longer finite.",
        "divides_model": "The method splits the model, so no update leaves a client.",
        "documents_sent": "The documents themselves leave the clients.",
        "download_failed": "A download failed.",
        "duplicate": "A name or value occurs twice.",
        "exists": "The target exists and is not overwritten.",
        "expired": "A certificate has expired.",
        "exposed": "An address that must be loopback can be reached from other machines.",
        "failed": "An operation failed while running.",
        "forged_shares": "A share does not come from the site that it names.",
        "gated": "The Hugging Face Hub requires access to be granted for this model.",
        "holds_adapter": "A folder given as a model holds an adapter.",
        "in_use": "Another process uses the file.",
        "invalid": "The value is not allowed.",
        "lacks_tokens": "The tokenizer lacks tokens that the task needs.",
        "left": "The client has left the run.",
        "line_lost": "The connection between client and server is lost.",
        "line_missing": "The ledger lacks an entry that others have seen.",
        "malformed_data": "An input file does not follow its format.",
        "malformed_frame": "A message is cut short, malformed, or not what was agreed.",
        "misquoted": "An annotation quotes other text than its offsets give.",
        "missing": "A required value is not given.",
        "missing_column": "A table or record lacks a required column.",
        "no_blocks": "The transformer blocks of the model cannot be found.",
        "no_effect": "The setting has no effect together with the others.",
        "no_head": "No head of the ledger is known to verify against.",
        "no_identity": "The value is not an identity, or not the public half of one.",
        "no_offsets": "The tokenizer does not give character offsets.",
        "not_agreed": "A message differs from what both sides agreed.",
        "not_annotated": "A text has no annotations, or a file has no labels.",
        "not_callable": "The model cannot be called in the required way.",
        "not_divisible": "The model cannot be split between client and server.",
        "not_enough_data": "There are too few documents, patients, labels or clients.",
        "not_finished": "The run has not finished.",
        "not_finite": "A number is not finite or too large to continue.",
        "not_found": "The file, folder or name does not exist.",
        "not_importable": "A module, or a name in it, cannot be imported.",
        "not_installed": "A required package is not installed.",
        "not_json": "A text is not JSON, or a value cannot be written as JSON.",
        "not_local": "An address is not on this machine.",
        "not_named_here": "The server names something that the site has not configured.",
        "not_pinned": "A site is not in the federation lock, or has another identity there.",
        "not_private": "It cannot be done under differential privacy.",
        "not_released": "A value would be sent that no private training has released.",
        "not_reserved": "Nothing is reserved in the privacy budget of the site.",
        "not_secret": "Other users can read a secret file.",
        "not_signed": "The signature of the required identity is missing or wrong.",
        "not_supported": "The method, task, model or engine does not support it.",
        "not_taken": "The other side does not accept what it is sent.",
        "not_utf8": "A file is not valid UTF-8.",
        "not_yaml": "A text is not valid YAML.",
        "not_yet_valid": "A certificate is not valid yet.",
        "nothing_released": "Tensors would be sent though no private training has released any.",
        "nothing_sent": "No part of the model leaves the clients.",
        "nothing_to_learn": "The training documents contain nothing to learn from.",
        "offline": "A network connection is needed, and none is available.",
        "other_keys": "The keys were made for another masked sum.",
        "other_run": "The server runs another run than the one that was joined.",
        "other_version": "The other side has another version of fedstrata.",
        "other_weights": "Client and server have different weights.",
        "out_of_order": "A message arrived where another one, or none, was expected.",
        "out_of_range": "A number or a length is too small or too large.",
        "policy_refused": "The policy of a site does not allow it.",
        "refused": "One side does not accept the other.",
        "replaced": "Another process, connection or submission has taken over.",
        "reserved": "The name is reserved.",
        "revoked": "The site is revoked.",
        "roster_changed": "The sites of a masked sum, or their keys, have changed.",
        "round_over": "The site has already released masked sums of later rounds.",
        "run_left": "The site left this run and does not join it again.",
        "runs_code": "The file may execute code when it is loaded.",
        "second_roster": "The site has already answered another roster of this masked sum.",
        "sees_ahead": "A causal model would see the tokens that it must predict.",
        "self_not_pinned": "The lock of a site does not have the identity of the site itself.",
        "server_decides": "The server sets this value, not a site.",
        "session_lost": "The server of a split model no longer has the session.",
        "session_over": "The other side no longer knows the session.",
        "session_too_large": "One session needs more memory than the server has for all sessions.",
        "shares_do_not_fit": "The shares do not give the secret to which a site has committed.",
        "site_decides": "A site sets this value, not the server.",
        "stale": "The weights have changed since the value was computed.",
        "step_lost": "The server of a split model no longer has the step.",
        "sum_lost": "The process of a site has lost the masked sum that it began.",
        "sum_not_finished": "Too few shares of a masked sum have arrived to unmask it.",
        "tied": "The parameter is tied to another one.",
        "timed_out": "The other side did not answer in time.",
        "too_few_signatures": "Too few sites have signed the transcript.",
        "too_few_sites": "Fewer sites take part than a masked sum needs.",
        "too_large": "A file, message or memory need is too large.",
        "too_long": "A message or file continues after its end.",
        "training_failed": "Training failed.",
        "transcript_mismatch": "The sites disagree about what a masked sum covers.",
        "turn_over": "The server has ended the turn of the client.",
        "unbounded": "The privacy spent would have no bound.",
        "unknown_key": "There is no setting of this name.",
        "unknown_name": "The name is none of the allowed ones.",
        "unknown_version": "The file has a version that this fedstrata does not read.",
        "unreachable": "The server cannot be reached.",
        "unreadable": "A file or folder cannot be read.",
        "unusable_sum": "A masked sum was released and cannot be used.",
        "unwritable": "A file or folder cannot be written.",
        "weak_key": "The key is degenerate and hides nothing.",
        "worker_lost": "A worker process ended before it was done.",
        "would_reveal": "The release would reveal the update of a single site.",
        "wrong_certificate": "The certificate belongs to another site.",
        "wrong_chain": "An entry of the ledger does not follow from the ones before it.",
        "wrong_command": "Another command is needed.",
        "wrong_count": "A row or list has the wrong number of parts.",
        "wrong_form": "A text does not have the required form.",
        "wrong_format": "A file has another format than the supported ones.",
        "wrong_hash": "The hash of a file is not the expected one.",
        "wrong_key": "The key is not the expected one.",
        "wrong_kit": "The kit belongs to another side, is a renewal, or is not needed.",
        "wrong_padding": "Rows are padded on the wrong side.",
        "wrong_server": "The process at the address is not a fedstrata server.",
        "wrong_shape": "A tensor has the wrong shape or type.",
        "wrong_sum": "The message belongs to another masked sum.",
        "wrong_threshold": "The server asks for another threshold than the lock of the site requires.",
        "wrong_token": "The client presents a wrong token.",
        "wrong_type": "The value has the wrong type.",
        "wrong_weights": "The weights do not belong to the model.",
    }
)
"""What each code means, in alphabetical order."""

_OF_VALIDATION: Mapping[str, str] = MappingProxyType(
    {
        "missing": "missing",
        "union_tag_not_found": "missing",
        "extra_forbidden": "unknown_key",
        "union_tag_invalid": "unknown_name",
        "literal_error": "unknown_name",
        "enum": "unknown_name",
        "string_pattern_mismatch": "wrong_form",
        "json_invalid": "not_json",
    }
)
"""Our codes for pydantic's types of errors; see `code_of_validation` for the rest."""


def code_of_validation(error: Mapping[str, Any], otherwise: str) -> str:
    """Returns our code for one of pydantic's errors.

    Args:
        error: One item of `ValidationError.errors()`, with its context.
        otherwise: The code where none fits.
    """
    kind: str = error["type"]
    if kind == "value_error":
        return getattr(error["ctx"]["error"], "code", otherwise)
    if kind in _OF_VALIDATION:
        return _OF_VALIDATION[kind]
    if kind.startswith(("greater_than", "less_than", "too_", "string_too", "finite_number")):
        return "out_of_range"
    return "wrong_type" if kind.endswith(("_type", "_parsing", "_from_float")) else otherwise


def code_of_reading(error: OSError) -> str:
    """Returns our code for a file or folder that could not be read."""
    return "not_found" if isinstance(error, FileNotFoundError) else "unreadable"
