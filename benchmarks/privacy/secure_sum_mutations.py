"""Do the tests of secure sums notice when a check or a binding is missing?

    python benchmarks/privacy/secure_sum_mutations.py

As `mutations.py`, which makes the mistakes and runs the tests.
"""

from mutations import Mutant, main

FOLDER, TESTS = "privacy/secure_sum", "tests/privacy/secure_sum"
CLIENT, ROSTER, SHARES = f"{FOLDER}/client.py", f"{FOLDER}/roster.py", f"{FOLDER}/shares.py"
SERVER = f"{FOLDER}/server.py"
MASKS, TRANSCRIPT, ATTEMPTS = f"{FOLDER}/masks.py", f"{FOLDER}/transcript.py", f"{FOLDER}/attempts.py"
UNMASKING, MESSAGES, QUANTIZATION = (
    f"{FOLDER}/unmasking.py",
    f"{FOLDER}/messages.py",
    f"{FOLDER}/quantization.py",
)

TURNS = "client/secure_turns.py"

OF_ROSTERS = f"{TESTS}/test_false_rosters.py"
OF_UNMASKING = f"{TESTS}/test_malicious_server.py"
OF_HOSTILE = f"{TESTS}/test_hostile_site.py"
OF_CRASHES = f"{TESTS}/test_crashes.py"
OF_MASKS = f"{TESTS}/test_masks.py"
OF_SHARES = f"{TESTS}/test_shares.py"
OF_MESSAGES = f"{TESTS}/test_messages.py"
OF_QUANTIZATION = f"{TESTS}/test_quantization.py"
OF_IDENTITIES = "tests/privacy/test_identity.py"
OF_COUNTS = "tests/engine/test_secure_attacks.py"
OF_LYING = "tests/engine/test_lying_clients.py"
OF_SITES = "tests/engine/test_secure_sites.py"

MUTANTS = [
    Mutant(
        "any signature of keys will do",
        [(ROSTER, "if not is_signed(", "if False and not is_signed(")],
        [OF_ROSTERS],
    ),
    Mutant(
        "keys of another sum will do", [(ROSTER, "if bundle.sum != roster.sum:", "if False:")], [OF_ROSTERS]
    ),
    Mutant(
        "any threshold will do", [(ROSTER, "if roster.threshold != (needed", "if 0 == (needed")], [OF_ROSTERS]
    ),
    Mutant(
        "own keys need not be there", [(ROSTER, "if own not in roster.bundles:", "if False:")], [OF_ROSTERS]
    ),
    Mutant(
        "a roster is answered twice",
        [(CLIENT, 'self._next = "input"\n', 'self._next = "shares"\n')],
        [OF_ROSTERS],
    ),
    Mutant(
        "masks are used twice",
        [
            (CLIENT, "        self._next = None\n", ""),
            (CLIENT, "        del self._seed, self._mask_key, self._share_key  # masks are made once\n", ""),
        ],
        [OF_ROSTERS],
    ),
    Mutant(
        "a second set of survivors is signed",
        [(CLIENT, "if self._survivors is not None and survivors != self._survivors:", "if False:")],
        [OF_UNMASKING],
    ),
    Mutant(
        "survivors may be fewer than the minimum",
        [(CLIENT, 'require_enough(len(survivors.sites), self._needed, "sent their updates")', "")],
        [OF_UNMASKING],
    ),
    Mutant(
        "signatures are not checked",
        [(CLIENT, "and is_signed(", "and True or is_signed(")],
        [OF_UNMASKING],
    ),
    Mutant(
        "one signature of something else keeps all from the sum",
        [
            (
                CLIENT,
                "        if len(signers) < self._roster.threshold or",
                "        if len(signers) < len(proof.signatures) or",
            )
        ],
        [OF_HOSTILE],
    ),
    Mutant(
        "fewer signatures than the threshold",
        [(CLIENT, "if len(signers) < self._roster.threshold or", "if")],
        [OF_UNMASKING],
    ),
    Mutant(
        "one's own signature is not needed",
        [(CLIENT, " or self._site not in signers:", ":")],
        [OF_UNMASKING],
    ),
    Mutant(
        "both shares of who dropped out",
        [(CLIENT, "self._open(survivors, slice", "self._open(self._sharers, slice")],
        [f"{TESTS}/test_drop_outs.py"],
    ),
    Mutant(
        "nothing is taken down before shares leave",
        [(CLIENT, "        self._attempts.release(self._name)\n", "")],
        [OF_UNMASKING],
    ),
    Mutant(
        "a released sum may begin again",
        [(ATTEMPTS, "            if released:\n", "            if False:\n")],
        [OF_UNMASKING],
    ),
    Mutant(
        "an attempt may be the same again",
        [(ATTEMPTS, "if name.attempt <= attempt:", "if name.attempt < attempt:")],
        [OF_UNMASKING],
    ),
    Mutant(
        "an older session may release",
        [(ATTEMPTS, "if attempt != name.attempt:", "if attempt < name.attempt:")],
        [OF_UNMASKING],
    ),
    Mutant(
        "what is taken down is not synced",
        [(ATTEMPTS, '"PRAGMA synchronous = EXTRA"', '"PRAGMA synchronous = OFF"')],
        [OF_CRASHES],
    ),
    Mutant(
        "what begins together is taken down one by one",
        [(ATTEMPTS, "if self._open is not None:", "if False:")],
        [OF_CRASHES],
    ),
    Mutant("masks do not depend on the model", [(TRANSCRIPT, "subject.model", '""')], [OF_MASKS]),
    Mutant("masks do not depend on the plan", [(TRANSCRIPT, "subject.plan", '""')], [OF_MASKS]),
    Mutant("masks do not depend on shapes", [(TRANSCRIPT, "[name, list(shape)]", "name")], [OF_MASKS]),
    Mutant(
        "what is signed does not tell survivors",
        [(TRANSCRIPT, '"survivors": sorted(survivors)', '"survivors": []')],
        [OF_UNMASKING],
    ),
    Mutant(
        "a seed is not bound to its context",
        [
            (
                MASKS,
                'derive(agree(own, public, other), context, "pair',
                'derive(agree(own, public, other), b"", "pair',
            )
        ],
        [OF_MASKS],
    ),
    Mutant(
        "every tensor begins the stream anew",
        [
            (
                MASKS,
                "for stream, operation in self._streams:",
                "for stream, operation in map(_again, self._streams):",
            ),
            (
                MASKS,
                "class MaskStream:",
                "def _again(pair):\n    pair[0].reset_nonce(bytes(16))\n    return pair\n\n\n"
                "class MaskStream:",
            ),
        ],
        [OF_MASKS],
    ),
    Mutant(
        "one's own mask is left out",
        [(CLIENT, "masks = [self_mask(self._seed, self._site, self._context)]", "masks = []")],
        [f"{TESTS}/test_drop_outs.py"],
    ),
    Mutant(
        "a threshold of half", [(SHARES, "return 2 * sites // 3 + 1", "return sites // 2 + 1")], [OF_SHARES]
    ),
    Mutant(
        "t - 1 shares give a secret", [(SHARES, "threshold(sites) - 1", "threshold(sites) - 2")], [OF_SHARES]
    ),
    Mutant(
        "a share is not bound to its receiver",
        [
            (
                SHARES,
                "canonical([name.model_dump(), sender, receiver])",
                "canonical([name.model_dump(), sender])",
            )
        ],
        [OF_SHARES],
    ),
    Mutant(
        "secrets that were put together are not checked",
        [
            (
                UNMASKING,
                "if len(placed) >= needed and fits(secret :=",
                "if len(placed) >= needed and (secret :=",
            )
        ],
        [OF_HOSTILE],
    ),
    Mutant(
        "a false share that was released spoils the sum",
        [(UNMASKING, "*({holder} for holder in trusted)]", "*()]")],
        [OF_HOSTILE],
    ),
    Mutant(
        "who deals false shares is not told from who releases one",
        [(UNMASKING, "site if len(trusted) > needed else None", "site")],
        [OF_HOSTILE],
    ),
    Mutant(
        "a site with another model is summed",
        [(SERVER, "told_apart(contexts, self._needed, self._name)", "()")],
        [OF_HOSTILE],
    ),
    Mutant(
        "two sites convict a third of seven",
        [(SERVER, "max(2, (sites - 1) // 3 + 1)", "2")],
        [OF_HOSTILE],
    ),
    Mutant(
        "one site convicts another",
        [(SERVER, "max(2, (sites - 1) // 3 + 1)", "1")],
        [OF_HOSTILE],
    ),
    Mutant(
        "whoever cannot open a share is the end of the sum",
        [(CLIENT, "except ForgedShares as refusal:", "except OutOfOrder as refusal:")],
        [OF_HOSTILE, OF_ROSTERS],
    ),
    Mutant(
        "masks are made with sites that have sent no shares",
        [(CLIENT, " or not set(others) <= self._senders:", ":")],
        [OF_ROSTERS],
    ),
    Mutant(
        "weak keys will do",
        [(ROSTER, "agree(own, bytes.fromhex(public), bundle.site)", "pass")],
        [OF_ROSTERS],
    ),
    Mutant(
        "who deals false shares is summed again",
        [("engine/masked_sums.py", "self.false_dealers & bundles.keys()", "set()")],
        [OF_LYING],
    ),
    Mutant(
        "false dealers are forgotten in a crash",
        [("engine/secure_mean.py", 'set(kept.get("false_dealers", ()))', "set()")],
        [OF_LYING],
    ),
    Mutant(
        "those who know whose keys are false are lost for it",
        [
            (
                "engine/masked_sums.py",
                "strangers = left_out(distrusted, len(sites)) & set(sites)",
                "strangers = set()",
            )
        ],
        [OF_LYING],
    ),
    Mutant(
        "a server makes a second sum in one folder",
        [(UNMASKING, "if (folder / _SUM).exists():", "if False:")],
        [OF_CRASHES],
    ),
    Mutant(
        "shares are not stored",
        [
            (
                UNMASKING,
                'frame.encode(pack(released)).write(self._folder / f"shares-{place:02d}.safetensors")',
                "pass",
            )
        ],
        [OF_CRASHES],
    ),
    Mutant("fields too many are read", [(MESSAGES, 'extra="forbid"', 'extra="ignore"')], [OF_MESSAGES]),
    Mutant(
        "sites need not be in order",
        [(MESSAGES, "if any(first >= second", "if any(False and first")],
        [OF_MESSAGES],
    ),
    Mutant(
        "rounding is to the nearest",
        [(QUANTIZATION, "block += randomness.uniform(len(block))", "block += 0.5")],
        [OF_QUANTIZATION],
    ),
    Mutant(
        "one bit too many",
        [(QUANTIZATION, "return (1 << bits - 7) - 1", "return 1 << bits - 7")],
        [OF_QUANTIZATION],
    ),
    Mutant(
        "saturated values are not counted",
        [(QUANTIZATION, "saturated += int(np.count_nonzero(np.abs(block) > bound))", "")],
        [OF_QUANTIZATION],
    ),
    Mutant(
        "two sites may have one identity",
        [("privacy/federation_lock.py", "        if len(names) > 1\n", "        if False\n")],
        [OF_IDENTITIES],
    ),
    Mutant(
        "an identity may be overwritten",
        [("core/files.py", "os.link(temporary, path)", "os.replace(temporary, path)")],
        [OF_IDENTITIES],
    ),
    Mutant(
        "others may read an identity",
        [("core/files.py", "os.O_EXCL, 0o600)", "os.O_EXCL, 0o644)")],
        [OF_IDENTITIES],
    ),
    Mutant(
        "updates are summed by the exchanges of scores, and scores by those of updates",
        [(TURNS, "if own != _place_of(terms) or", "if own[:3] != _place_of(terms)[:3] or")],
        [OF_COUNTS],
    ),
    Mutant(
        "any documents are counted",
        [(TURNS, "terms.sum.handler in COUNTED.values()", "True")],
        [OF_COUNTS],
    ),
    Mutant(
        "a session of scores answers the exchanges of updates",
        [(TURNS, "own != _place_of(session.terms)", "own[:3] != _place_of(session.terms)[:3]")],
        [OF_COUNTS],
    ),
    Mutant(
        "scores are told in the clear as well",
        [
            (
                "engine/remote/site_scoring.py",
                "self.tells and masked == private.secure_aggregation",
                "self.tells",
            )
        ],
        [OF_SITES],
    ),
    Mutant(
        "what is above 24 bits is part of a number",
        [(QUANTIZATION, "[start : start + _BLOCK] << above >> above)", "[start : start + _BLOCK])")],
        [OF_QUANTIZATION],
    ),
    Mutant(
        "two parts of a counted number are one",
        [(QUANTIZATION, "sum(limb << (_LIMB * place)", "sum(limb << (_LIMB * min(place, 1))")],
        [OF_QUANTIZATION],
    ),
]

if __name__ == "__main__":
    main(MUTANTS)
