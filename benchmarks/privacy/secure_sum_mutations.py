"""Do the tests of secure sums notice when a check or a binding is missing?

    python benchmarks/privacy/secure_sum_mutations.py

As `mutations.py`, which makes the mistakes and runs the tests.
"""

from mutations import Mutant, main

FOLDER, TESTS = "privacy/secure_sum", "tests/privacy/secure_sum"
CLIENT, ROSTER, SHARES = f"{FOLDER}/client.py", f"{FOLDER}/roster.py", f"{FOLDER}/shares.py"
SERVER = f"{FOLDER}/server.py"
MASKS, TRANSCRIPT, GUARD = f"{FOLDER}/masks.py", f"{FOLDER}/transcript.py", f"{FOLDER}/release_guard.py"
MEAN = f"{FOLDER}/mean.py"
UNMASKING, MESSAGES, QUANTIZATION = (
    f"{FOLDER}/unmasking.py",
    f"{FOLDER}/messages.py",
    f"{FOLDER}/quantization.py",
)

TURNS, SUMS = "client/secure_turns.py", "engine/masked_sums.py"

OF_ROSTERS = f"{TESTS}/test_false_rosters.py"
OF_UNMASKING = f"{TESTS}/test_malicious_server.py"
OF_HOSTILE = f"{TESTS}/test_hostile_site.py"
OF_CRASHES = f"{TESTS}/test_crashes.py"
OF_DROP_OUTS = f"{TESTS}/test_drop_outs.py"
OF_GUARDS = f"{TESTS}/test_release_guard.py"
OF_MEANS = f"{TESTS}/test_mean.py"
OF_MASKS = f"{TESTS}/test_masks.py"
OF_SHARES = f"{TESTS}/test_shares.py"
OF_MESSAGES = f"{TESTS}/test_messages.py"
OF_QUANTIZATION = f"{TESTS}/test_quantization.py"
OF_IDENTITIES = "tests/privacy/test_identity.py"
OF_COUNTS = "tests/engine/test_secure_attacks.py"
OF_LYING = "tests/engine/test_lying_clients.py"
OF_SITES = "tests/engine/test_secure_sites.py"
OF_SERVERS = "tests/engine/remote/test_lying_sums.py"

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
        "any threshold will do",
        [(ROSTER, "if not needed <= roster.threshold <= sites:", "if False:")],
        [f"{OF_ROSTERS}::test_a_threshold_below_the_own_one_is_refused"],
    ),
    Mutant(
        "more shares may be asked for than there are sites",
        [(ROSTER, "needed <= roster.threshold <= sites:", "needed <= roster.threshold:")],
        [f"{OF_ROSTERS}::test_a_roster_that_does_not_hide_is_refused"],
    ),
    Mutant(
        "a site takes the threshold from the roster alone",
        [(ROSTER, "threshold(max(known, len(roster.bundles)))", "threshold(len(roster.bundles))")],
        [f"{OF_ROSTERS}::test_the_threshold_follows_from_the_lock_of_each_site_and_not_from_the_roster"],
    ),
    Mutant(
        "a server takes the threshold from the roster alone",
        [(SERVER, "threshold(max(self._known, len(bundles)))", "threshold(len(bundles))")],
        [f"{OF_DROP_OUTS}::test_every_subset_that_drops_out_in_one_exchange"],
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
        [OF_DROP_OUTS],
    ),
    Mutant(
        "nothing is recorded before shares leave",
        [(CLIENT, "        self._guard.release(self._name, self._summed, survivors)\n", "")],
        [OF_UNMASKING],
    ),
    Mutant(
        "a release is not recorded",
        [
            (
                GUARD,
                "INSERT OR IGNORE INTO released VALUES (?, ?, ?, ?, ?, ?, ?)",
                "SELECT ?, ?, ?, ?, ?, ?, ?",
            )
        ],
        [OF_GUARDS],
    ),
    Mutant(
        "the same is released with any survivors",
        [
            (
                GUARD,
                "if others := sorted(revealed - allowed):",
                "if others := []:",
            )
        ],
        [f"{OF_GUARDS}::test_the_same_is_not_released_with_other_sites"],
    ),
    Mutant(
        "a site more than before is no other survivor",
        [(GUARD, "lambda before: before ^ own", "lambda before: before - own")],
        [f"{OF_GUARDS}::test_the_same_is_not_released_with_other_sites"],
    ),
    Mutant(
        "nothing is checked before it is masked",
        [(GUARD, "lambda before: before - set(sites)", "lambda before: set()")],
        [f"{OF_GUARDS}::test_the_same_is_not_released_with_other_sites"],
    ),
    Mutant(
        "what was released is recognised by its name alone",
        [
            (
                GUARD,
                "if others := sorted(revealed - allowed):",
                "if (others := sorted(revealed - allowed)) and self._content(connection, name):",
            )
        ],
        [f"{OF_GUARDS}::test_the_same_is_not_released_with_other_sites"],
    ),
    Mutant(
        "what was released in other runs does not count",
        [
            (
                GUARD,
                "if others := sorted(revealed - allowed):",
                "if (others := sorted(revealed - allowed)) and self._last_round(connection, name.run) >= 0:",
            )
        ],
        [f"{OF_GUARDS}::test_the_same_is_not_released_with_other_sites"],
    ),
    Mutant(
        "what other clients have released counts",
        [
            (
                GUARD,
                'WHERE client = ? AND summed = ?", (self._client, summed)',
                'WHERE summed = ?", (summed,)',
            )
        ],
        [f"{OF_GUARDS}::test_the_clients_of_one_file_are_independent"],
    ),
    Mutant(
        "something else is released under a released name",
        [(GUARD, "if self._content(connection, name) - {summed}:", "if False:")],
        [f"{OF_GUARDS}::test_something_else_under_a_released_name_is_refused"],
    ),
    Mutant(
        "a round below the last released one begins",
        [(GUARD, "if name.round < last and", "if False and")],
        [f"{OF_GUARDS}::test_a_round_below_the_last_released_one_of_a_run_does_not_begin"],
    ),
    Mutant(
        "a released sum of an earlier round is not finished",
        [(GUARD, "if name.round < last and not self._content(connection, name):", "if name.round < last:")],
        [f"{OF_GUARDS}::test_a_round_below_the_last_released_one_of_a_run_does_not_begin"],
    ),
    Mutant(
        "to allow one site allows everything",
        [
            (
                GUARD,
                "sorted(revealed - allowed)",
                "sorted(() if allowed else revealed)",
            )
        ],
        [f"{OF_GUARDS}::test_a_site_may_allow_exactly_the_named_difference"],
    ),
    Mutant(
        "what a client has last trained on is forgotten",
        [(GUARD, 'return str((last.fetchone() or ("",))[0])', 'return ""')],
        [f"{OF_GUARDS}::test_a_plan_without_tensors_continues_from_the_last_ones"],
    ),
    Mutant(
        "a plan without tensors is taken for those that came before it",
        [(GUARD, "if bool(found[0]) != row[2]:", "if False:")],
        [OF_SERVERS],
    ),
    Mutant(
        "tensors that are what the model has already make another sum",
        [(TURNS, "if came.shape != own.shape or not came.equal(own):", "if True:")],
        [OF_SERVERS],
    ),
    Mutant(
        "a model in another dtype is another sum",
        [(TURNS, "came = plan.tensors[name].to(own.dtype)", "came = plan.tensors[name]")],
        [OF_SERVERS],
    ),
    Mutant(
        "what was released is recognised by the plan's terms, which have the sum's name in them",
        [
            (
                TURNS,
                "session.client.require_new(self._summed(order.client, session.terms, plan), sharers)",
                "pass",
            )
        ],
        [OF_SERVERS],
    ),
    Mutant(
        "other values beside the same tensors are another sum",
        [
            (
                TURNS,
                "hash_of_frame(frame.encode(Plan(changed)))",
                "hash_of_frame(frame.encode(Plan(changed, plan.values)))",
            )
        ],
        [OF_SERVERS],
    ),
    Mutant(
        "a site does not bind its sums to its own settings",
        [
            (
                TURNS,
                "subject_of(terms, self._hash(), self._workplace.agreed)",
                'subject_of(terms, self._hash(), "")',
            )
        ],
        [OF_SERVERS],
    ),
    Mutant(
        "a sum may be a call that the method never makes",
        [(TURNS, "1 <= name.call <= method.sums_a_round", "1 <= name.call")],
        [OF_SERVERS],
    ),
    Mutant(
        "an attempt may be the same again",
        [(GUARD, "if name.attempt <= attempt:", "if name.attempt < attempt:")],
        [OF_UNMASKING],
    ),
    Mutant(
        "an older session may release",
        [
            (
                GUARD,
                "if (attempt := self._attempt(connection, name)) != name.attempt:",
                "if (attempt := self._attempt(connection, name)) < name.attempt:",
            )
        ],
        [OF_UNMASKING],
    ),
    Mutant(
        "what is recorded is not synced",
        [("core/site_database.py", '"PRAGMA synchronous = EXTRA"', '"PRAGMA synchronous = OFF"')],
        [OF_CRASHES],
    ),
    Mutant("masks do not depend on what is agreed", [(TRANSCRIPT, "subject.agreed", '""')], [OF_MASKS]),
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
        [OF_DROP_OUTS],
    ),
    Mutant(
        "a threshold of half", [(SHARES, "return 2 * sites // 3 + 1", "return sites // 2 + 1")], [OF_SHARES]
    ),
    Mutant(
        "t - 1 shares give a secret", [(SHARES, "higher = needed - 1", "higher = needed - 2")], [OF_SHARES]
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
        [(SUMS, "self.false_dealers & bundles.keys()", "set()")],
        [OF_LYING],
    ),
    Mutant(
        "false dealers are forgotten in a crash",
        [(SUMS, "self.false_dealers = set(json.loads(path.read_bytes()))", "pass")],
        [OF_LYING],
    ),
    Mutant(
        "those who know whose keys are false are lost for it",
        [
            (
                SUMS,
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
        "more cut values than there are widen the range",
        [(MEAN, "widens = cut is not None and cut >", "widens = cut is None or cut >")],
        [f"{OF_MEANS}::test_an_impossible_count_of_cut_values_widens_nothing"],
    ),
    Mutant(
        "any count of cut values is possible",
        [(MEAN, "possible = cut <= sites * min(own, most_counted(terms.ring))", "possible = True")],
        [f"{OF_MEANS}::test_an_impossible_count_of_cut_values_widens_nothing"],
    ),
    Mutant(
        "a range widens without end",
        [(MEAN, "min(max(rule, WIDER * each.bound), WIDEST * rule)", "max(rule, WIDER * each.bound)")],
        [f"{OF_MEANS}::test_a_mean_with_cut_values_is_used_and_the_next_range_is_wider"],
    ),
    Mutant(
        "a mean of a false weight is used",
        [(MEAN, "if not len(survivors) <= weight <= len(survivors) * terms.scale:", "if False:")],
        [f"{OF_MEANS}::test_a_sum_with_a_weight_that_no_sites_can_have_together_cannot_be_used"],
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
        [(TURNS, "name.handler in COUNTED.values()", "True")],
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
    Mutant(
        "a consent is of every model",
        [(GUARD, 'if used in ("", summed)', "if used is not None")],
        [f"{OF_GUARDS}::test_a_consent_is_of_one_model"],
    ),
    Mutant(
        "a consent is never used up",
        [(GUARD, "self._allowed.update(dict.fromkeys(revealed, summed))", "pass")],
        [f"{OF_GUARDS}::test_a_consent_is_of_one_model"],
    ),
    Mutant(
        "the rounding follows from the seed of the run",
        [(MEAN, "SecureRandomness(_rounding_key(update, seed))", "SecureRandomness(seed.numpy().bytes(32))")],
        [f"{OF_MEANS}::test_a_server_cannot_work_out_how_an_update_was_rounded"],
    ),
    Mutant(
        "the rounding depends on the names of tensors alone",
        [
            (
                MEAN,
                'digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)',
                "pass",
            )
        ],
        [f"{OF_MEANS}::test_a_server_cannot_work_out_how_an_update_was_rounded"],
    ),
    Mutant(
        "a site whose training diverges fails by name",
        [("client/turn.py", "if diverged is None or private is not None:", "if True:")],
        [f"{OF_SERVERS}::test_a_model_that_diverges_on_a_word_does_not_tell_which_site_has_it"],
    ),
    Mutant(
        "a plan that is not finite is trained on",
        [(TURNS, "all(tensor.isfinite().all() for tensor in plan.tensors.values())", "True")],
        [f"{OF_SERVERS}::test_a_model_that_diverges_on_a_word_does_not_tell_which_site_has_it"],
    ),
    Mutant(
        "divergence is not counted",
        [(MEAN, "int(self._diverged)", "0")],
        [f"{OF_MEANS}::test_an_update_that_has_diverged_is_counted"],
    ),
]

if __name__ == "__main__":
    main(MUTANTS)
