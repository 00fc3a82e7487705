"""Trainings with a secure sum: the numbers of the simulator, and nothing else for the server."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from pcfed import PCFedSplit, Problem, run
from pcfed.federation import Message, Server
from pcfed.federation.client_state import ClientState
from pcfed.federation.identity import Identity
from pcfed.federation.masking import PUBLIC, Introduction, _signed
from pcfed.federation.paths import OPEN_SUM
from pcfed.federation.protocol import ProtocolError
from pcfed.federation.rollback import roll_back
from pcfed.federation.secure_agent import SecureAgent
from pcfed.federation.secure_sums import SecureSums
from pcfed.federation.server import Diverged, MissingAgents
from pcfed.storage.archive import load_arrays, save_arrays
from tests.federation.in_process import (
    NAMES,
    OPTIONS,
    FaultyTransport,
    RefusingTransport,
    federation,
    history,
    models,
)
from tests.federations import ALGORITHMS, classifiers

GRID = 2.0**-32
SENDING = {name: each for name, each in ALGORITHMS.items() if name != "Local"}
FREE = Problem(classifiers().agents, "free")
CASES = {name: (each, classifiers(), "average") for name, each in SENDING.items()}
CASES["PCFedSplit, free centre"] = (PCFedSplit(), FREE, "free")


class Recording(RefusingTransport):
    """Remembers all messages, and the true updates of agents after each reply to ``train``."""

    def __init__(self, clients, faults=()):
        super().__init__(clients, faults)
        self.messages, self.updates = [], []

    def answer(self, name, message):
        self.messages.append((name, message))
        reply = super().answer(name, message)
        if reply.kind == "train":
            pending = ClientState.load(self.clients[name].state_path).pending
            sent = {key: rows[0] for key, rows in pending.sent.items()}
            self.updates.append((name, sent))
        return reply


@pytest.mark.parametrize("case", CASES)
def test_the_bits_of_the_simulator(case, tmp_path):
    algorithm, problem, center = CASES[case]
    options = {"problem": problem, "center": center, "secure": True}
    with federation(tmp_path / "secure", algorithm, 4, **options) as (_, clients, server):
        server.run()
        server.finish()
        found, audit, certificate = models(clients, server), server.audit(), server.certificate()
        assert [entry["accepted"] for entry in history(server)] == [list(NAMES)] * 4
        assert not (server.folder / OPEN_SUM).exists()
    assert audit
    assert set(audit.values()) == {0.0}
    more = {"rounds": 4, "batch": 0.3, **OPTIONS}
    expected = run(problem, algorithm, grid=GRID, **more).models
    np.testing.assert_array_equal(found, expected)
    plain = run(problem, algorithm, **more).models
    assert 0 < np.abs(found - plain).max() < 1e-6

    # No owner consents here, and there is a certificate: it needs none.
    options = {"problem": problem, "center": center, "owner": {"certificate": True}}
    with federation(tmp_path / "plain", algorithm, 4, **options) as (_, _, server):
        server.run()
        np.testing.assert_allclose(certificate.objective, server.certificate().objective, rtol=1e-6)
        np.testing.assert_allclose(certificate.gap, server.certificate().gap, rtol=1e-5)


def test_the_certificate_is_that_of_the_same_models_without_a_secure_sum(tmp_path):
    """The same models: a plain federation whose agents are in the states of a secure one."""
    algorithm, owner = ALGORITHMS["PCFedSplit"], {"certificate": True}
    with federation(tmp_path / "a", algorithm, 4, secure=True) as (_, clients, server):
        server.run()
        server.finish()
        found, vectors, accepted = server.certificate(), server.state.vectors, server.state.accepted
    with federation(tmp_path / "b", algorithm, 4, owner=owner) as (_, others, server):
        for name, client in others.items():
            state = ClientState.load(clients[name].state_path)
            client.folder.mkdir(parents=True)
            replace(state, secure=False, totals={}).save(client.state_path)
        server.state = replace(server.state, round=4, vectors=vectors, accepted=accepted)
        expected = server.certificate()
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-9)
    np.testing.assert_allclose(found.gap, expected.gap, rtol=1e-9)
    assert found.reason is None


def test_numbers_in_float32(tmp_path):
    problem = classifiers(dtype=np.float32)
    algorithm = ALGORITHMS["PCFedAvg"]
    with federation(tmp_path, algorithm, 3, problem=problem, secure=True) as (_, clients, server):
        server.run()
        server.finish()
        assert set(server.audit().values()) == {0.0}
        expected = run(problem, algorithm, rounds=3, batch=0.3, grid=GRID, **OPTIONS).models
        np.testing.assert_array_equal(models(clients, server), expected)


# -- what the server sees -------------------------------------------------------------------------


def largest_correlation(replies, updates):
    """Return the largest correlation of an update with a part of a vector in any reply."""
    largest = 0.0
    for reply in replies:
        for vector in reply.vectors.values():
            numbers = vector.view(np.int64) * GRID if vector.dtype == np.uint64 else vector
            for _, sent in updates:
                for update in sent.values():
                    if len(update) > len(numbers) or not np.ptp(update) or len(update) < 30:
                        continue
                    parts = np.lib.stride_tricks.sliding_window_view(numbers, len(update))
                    parts = parts - parts.mean(axis=1, keepdims=True)
                    norms = np.linalg.norm(parts, axis=1) + 1e-300
                    centered = update - update.mean()
                    found = np.abs(parts @ centered) / norms / np.linalg.norm(centered)
                    largest = max(largest, float(found.max()))
    return largest


@pytest.mark.parametrize(
    "name",
    [
        *("PCFedAvg", "PCFedSplit", "FedAvg", "Scaffold", "ProxAL", "FedMiD", "FedDualAvg"),
        *("Ditto", "PFedMe", "PerFedAvg", "FedRep", "PFedHN"),
    ],
)
def test_no_reply_contains_a_summand(name, tmp_path):
    found = {}
    for secure in (False, True):
        options = {"secure": secure, "transport": Recording, "owner": {"certificate": True}}
        with federation(tmp_path / str(secure), SENDING[name], 3, **options) as (_, _, server):
            server.run()
            server.conclude()
            transport = server.transport
            found[secure] = largest_correlation(transport.replies, transport.updates)
            assert len(transport.updates) == 9
            if secure:
                # All vectors are masked, and of texts there are only keys, shares and signatures.
                assert {v for r in transport.replies for v in r.vectors} == {"masked"}
                always = {"protocol", "name", "training", "round", "rollbacks", "certificate"}
                more = {"introduction", "announcements", "context", "signature"}
                shares = {"mask_shares", "key_shares"}
                for reply in transport.replies:
                    assert set(reply.metadata) <= always | more | shares
    assert found[False] > 1 - 1e-9  # the search finds what is there
    assert found[True] < 0.85


@pytest.mark.parametrize("secure", [False, True])
def test_a_model_from_all_replies(secure, tmp_path):
    """In PCFedAvg an agent's model is C plus the sum of all its u over m, and u is sent."""
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 4, secure=secure) as (_, clients, server):
        server.run()
        server.finish()
        own, n = models(clients, server), server.config.n
        for name, model in zip(NAMES, own, strict=True):
            guess = server.state.vectors["C"].copy()
            for reply in server.transport.replies:
                if reply.kind == "train" and reply.metadata["name"] == name:
                    # Of the masked integers, those of u come first.
                    u = reply.vectors["masked"][:n].view(np.int64) if secure else reply.vectors["u"]
                    guess += u * (GRID if secure else 1.0) / len(NAMES)
            distance = np.linalg.norm(guess - model) / np.linalg.norm(model)
            assert distance > 1e3 if secure else distance < 1e-12


# -- dishonest servers ----------------------------------------------------------------------------


def test_the_same_message_with_a_finer_grid_is_refused(tmp_path):
    """The update would be twice as many integers under the same masks."""

    class Again(Recording):
        refusals = 0

        def answer(self, name, message):
            reply = super().answer(name, message)
            if message.kind == "train" and name == "north":
                finer = {**message.metadata, "grid": message.metadata["grid"] / 2}
                again = super().answer(name, Message("train", finer, message.vectors))
                assert again.kind == "error"
                assert "changed the setting grid" in again.metadata["reason"]
                self.refusals += 1
            return reply

    options = {"secure": True, "transport": Again}
    with federation(tmp_path, ALGORITHMS["FedAvg"], 2, **options) as (_, _, server):
        server.run()
        assert server.transport.refusals == 2
        assert set(server.audit().values()) == {0.0}


def test_an_audit_with_other_names_is_refused(tmp_path):
    """Of a vector that it never sent, an agent has zeros: its answer would be the masks."""

    class Again(Recording):
        reasons: tuple[str, ...] = ()

        def answer(self, name, message):
            reply = super().answer(name, message)
            if message.kind == "audit" and name == "north":
                size = len(next(iter(message.vectors.values())))
                other = {**message.metadata, "audited": json.dumps({"unknown": size})}
                again = super().answer(name, Message("audit", other, message.vectors))
                self.reasons += (str(again.metadata.get("reason")),)
            return reply

    options = {"secure": True, "transport": Again}
    with federation(tmp_path, ALGORITHMS["FedAvg"], 2, **options) as (_, _, server):
        server.run()
        server.audit()
        assert len(server.transport.reasons) == 1
        assert "another question" in server.transport.reasons[0]


@pytest.mark.parametrize("before", [False, True])
def test_agents_that_are_asked_different_things_do_not_add_up(before, tmp_path):
    """All but north get so small a step that their updates are zero: the sum would be north's.

    Instead of doing it in the round itself, the server may do it in a first attempt, because agents
    compute the update of a round once.
    """

    class Unequal(Recording):
        first = True

        def exchange(self, messages, min_present):
            train = {n for n, each in messages.items() if each.kind == "train"}
            if not train:
                yield from super().exchange(messages, min_present)
                return
            changed = {}
            for name, message in messages.items():
                if before and self.first and name == "north":
                    continue  # it is absent in the first attempt
                metadata = dict(message.metadata)
                if name != "north" and (self.first or not before):
                    metadata["step"] = 1e-200
                changed[name] = Message(message.kind, metadata, message.vectors)
            self.first = False
            yield from super().exchange(changed, min_present)

    options = {"secure": True, "transport": Unequal, "attempts": 3}
    with federation(tmp_path, ALGORITHMS["FedAvg"], 1, **options) as (_, _, server):
        with pytest.raises(MissingAgents):
            server.run()
        kinds = {message.kind for _, message in server.transport.messages}
        assert "unmask" not in kinds
        zero = [n for n, sent in server.transport.updates if not np.any(sent["delta"])]
        assert set(zero) == {"south", "west"}  # what the attack needs was there


def test_a_false_last_update_in_an_audit_opens_nothing(tmp_path):
    """An agent that did not help to open the last sum can't know whether its update is in it.

    If it alone leaves the update out of an audit, the difference to the sum is this update.
    """
    victim = "agent 1"

    class Lying(Recording):
        def exchange(self, messages, min_present):
            changed = {}
            for name, message in messages.items():
                metadata = dict(message.metadata)
                if message.kind == "unmask" and metadata["round"] == 2 and name == victim:
                    continue
                if metadata["round"] == 3 and name == victim:
                    metadata["accepted_round"] = 1
                changed[name] = Message(message.kind, metadata, message.vectors)
            yield from super().exchange(changed, min_present)

    options = {"problem": classifiers(4), "secure": True, "transport": Lying}
    with federation(tmp_path, ALGORITHMS["FedAvg"], 3, **options) as (_, _, server):
        server.run()
        assert len(history(server)[2]["accepted"]) == 4
        with pytest.raises(MissingAgents, match="agents do not agree on whose updates count"):
            server.audit()


def test_an_audit_of_a_changed_sum_is_not_zero(tmp_path):
    with federation(tmp_path, ALGORITHMS["FedAvg"], 2, secure=True) as (_, _, server):
        server.run()
        totals = {name: total.copy() for name, total in server.state.totals.items()}
        totals["delta"][3] += np.uint64(1)
        server.state = replace(server.state, totals=totals)
        assert server.audit()["delta"] >= GRID


def test_a_broken_announcement_does_not_stop_the_server(tmp_path):
    """An agent sends a list in place of its shares: it takes no part, and the others train."""

    class Broken(Recording):
        def answer(self, name, message):
            reply = super().answer(name, message)
            if name == "agent 2" and "announcements" in reply.metadata:
                announced = json.loads(reply.metadata["announcements"])
                if "shared" in announced:
                    announced["shared"]["shares"] = ["nothing"]
                metadata = {**reply.metadata, "announcements": json.dumps(announced)}
                reply = Message(reply.kind, metadata, reply.vectors)
            return reply

    options = {"problem": classifiers(5), "secure": True, "transport": Broken}
    with federation(tmp_path, ALGORITHMS["FedAvg"], 2, **options) as (_, _, server):
        server.run()
        assert [len(entry["accepted"]) for entry in history(server)] == [4, 4]


FIELDS = [
    ("introduce", "introduction"),
    ("announce", "announcements"),
    ("train", "context"),
    ("confirm", "signature"),
    ("unmask", "mask_shares"),
    ("unmask", "announcements"),
]


@pytest.mark.parametrize("wrong", ["[" * 100_000, '{"shared": [1]}', 3.0])
@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_broken_field_of_a_reply_does_not_stop_the_others(kind, field, wrong, tmp_path):
    class Broken(FaultyTransport):
        def answer(self, name, message):
            reply = super().answer(name, message)
            if name == "agent 2" and reply.kind == kind:
                assert field in reply.metadata
                reply = Message(kind, {**reply.metadata, field: wrong}, reply.vectors)
            return reply

    options = {"problem": classifiers(5), "secure": True, "transport": Broken}
    with federation(tmp_path, ALGORITHMS["FedAvg"], 2, **options) as (_, _, server):
        server.run()
        others = {"agent 1", "agent 3", "agent 4", "agent 5"}
        assert all(others <= set(entry["accepted"]) for entry in history(server))


class Spoiler(SecureAgent):
    """An agent that signs keys with which others can agree on nothing."""

    what, key = "", ""

    def introduce(self, message):
        reply = super().introduce(message)
        if self.what == "box":
            training, name = str(message.metadata["training"]), self.name
            box = bytes.fromhex(self.key)
            signature = self.identity.sign("introduction", training, name, box).hex()
            introduction = Introduction(name, self.identity.public, self.key, signature)
            reply = {"introduction": json.dumps(introduction)}
        return reply

    def _announce(self, state, message):
        found = json.loads(super()._announce(state, message)["announcements"])
        for made in found.values():
            if self.what in made and (self.what != "group" or made["group"]):
                made[self.what] = self.key
                parts = _signed(state.training, {key: made[key] for key in PUBLIC})
                made["signature"] = self.identity.sign(*parts).hex()
        return {"announcements": json.dumps(found)}


@pytest.mark.parametrize("key", ["00" * 32, "01" + "00" * 31, "ab"])
@pytest.mark.parametrize("what", ["box", "mask_key", "share_key", "group"])
def test_useless_keys_exclude_their_agent_and_nobody_else(what, key, tmp_path):
    options = {"problem": classifiers(5), "secure": True, "transport": RefusingTransport}
    with federation(tmp_path, ALGORITHMS["FedAvg"], 2, **options) as (_, clients, server):
        spoiler = clients["agent 2"]
        folder, identity = tmp_path / "agent 2", Identity.create()
        spoiler._secure = Spoiler("agent 2", identity, folder / "secrets.json")
        spoiler._secure.what, spoiler._secure.key = what, key
        server.run()
        others = ["agent 1", "agent 3", "agent 4", "agent 5"]
        assert [entry["accepted"] for entry in history(server)] == [others] * 2
        reason = history(server)[0]["refused"]["agent 2"]
        expected = (
            "its public keys are" if what == "box" else "what it announces for the next sum is"
        )
        assert reason == f"{expected} not valid"


def test_announcements_without_shares_exclude_their_agent_and_nobody_else(tmp_path):
    """Nobody could open a sum with it."""
    options = {"problem": classifiers(5), "secure": True, "transport": RefusingTransport}
    with federation(tmp_path, ALGORITHMS["FedAvg"], 2, **options) as (_, clients, server):
        secrets = tmp_path / "agent 2" / "secrets.json"
        spoiler = Spoiler("agent 2", Identity.create(), secrets)
        spoiler.what, spoiler.key = "shares", {}
        clients["agent 2"]._secure = spoiler
        server.run()
        assert [len(entry["accepted"]) for entry in history(server)] == [4, 4]


def test_a_pending_update_of_the_format_before_is_committed(tmp_path):
    """It does not have the settings by which it was computed."""
    with federation(tmp_path, ALGORITHMS["PCFedAvg"], 2, secure=True) as (_, clients, server):
        server.run_round()
        for client in clients.values():
            metadata, arrays = load_arrays(client.state_path)
            for key in ("terms", "withheld", "reported"):
                del metadata[key]
            save_arrays(client.state_path, {**metadata, "format": 6}, arrays)
        server.run()
        server.finish()
        assert set(server.audit().values()) == {0.0}


def test_with_an_update_above_the_limit_the_sum_is_useless(tmp_path, caplog):
    """Zeros in its place would leave the sum of the others: with small limits, of one agent."""
    algorithm, problem = ALGORITHMS["FedAvg"], classifiers(4)
    with federation(tmp_path / "plain", algorithm, 1, problem=problem) as (_, _, server):
        server.run()
        sent = [reply.vectors["delta"] for reply in server.transport.replies]
    norms = sorted(map(np.linalg.norm, sent))
    sums = []
    for place, limit in enumerate([*norms[:3], 2 * norms[3]]):
        options = {"problem": problem, "secure": True, "norm_limit": 1.0001 * limit}
        with federation(tmp_path / f"secure {place}", algorithm, 1, **options) as (_, _, server):
            opened = SecureSums.sum_updates

            def keep(self, *arguments, opened=opened):
                found = opened(self, *arguments)
                sums.append(found.total)
                return found

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(SecureSums, "sum_updates", keep)
                if place == 3:
                    server.run()
                    assert server.state.round == 1
                    continue
                above = rf"round 0: {3 - place} of 4 agents have updates that are too long"
                with pytest.raises(Diverged, match=above):
                    server.run()
            assert server.state.round == 0
    assert "random numbers take the place of its update of round 0" in caplog.text
    *useless, right = sums
    assert [int(total[-1]) for total in sums] == [3, 2, 1, 0]
    assert np.abs(right[:-1].view(np.int64)).max() < 2**40
    # The top bits of useless sums are those of uniform numbers.
    tops = np.concatenate([total[:-1] for total in useless]) >> np.uint64(62)
    assert np.bincount(tops.astype(int), minlength=4).min() > len(tops) / 8


# -- owners ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
def test_a_training_stays_as_it_began(secure, tmp_path):
    with federation(tmp_path, ALGORITHMS["FedAvg"], 3, secure=secure) as (_, clients, server):
        server.run_round()
        config = replace(server.config, secure=not secure)
        state = clients["north"].state_path.read_bytes()
        with pytest.raises(ValueError, match="checkpoint of a training with another secure"):
            Server(config, server.transport, server.folder)
        other = Server(config, server.transport, tmp_path / "another folder")
        accepted = dict.fromkeys(NAMES, 0)
        other.state = replace(other.state, round=1, accepted=accepted, vectors=server.state.vectors)
        begun = "with" if secure else "without"
        with pytest.raises(ValueError, match=f"began {begun} a secure sum, which can't change"):
            other.run_round()
        assert clients["north"].state_path.read_bytes() == state
        other.__exit__(None, None, None)


def test_an_owner_can_refuse_trainings_without_a_secure_sum(tmp_path):
    owner = {"only_secure": True}
    with federation(tmp_path / "a", ALGORITHMS["FedAvg"], 1, owner=owner) as (_, _, server):
        with pytest.raises(ProtocolError, match="takes part only with a secure sum"):
            server.run()
        assert not server.transport.replies
    options = {"owner": owner, "secure": True}
    with federation(tmp_path / "b", ALGORITHMS["FedAvg"], 1, **options) as (_, _, server):
        server.run()
        assert server.state.round == 1


def test_a_training_whose_limit_was_too_small_goes_back(tmp_path):
    """The owners consent, and the limit is raised."""
    owner = {"rollbacks": 1}
    options = {"secure": True, "keep_every": 1, "attempts": 1, "owner": owner}
    algorithm = ALGORITHMS["PCFedSplit"]
    with federation(tmp_path, algorithm, 3, **options) as (problem, clients, server):
        server.run_round()
        config = server.config
        server.config = replace(config, norm_limit=1e-9)
        for _ in range(2):
            with pytest.raises(Diverged, match=r"Raise rounds\.norm_limit if it is too small"):
                server.run()
        assert server.state.round == 1
        server.__exit__(None, None, None)
        roll_back(server.folder, 0)
        again = Server(config, FaultyTransport(clients), server.folder)
        again.run()
        again.finish()
        assert set(again.audit().values()) == {0.0}
        expected = run(problem, algorithm, rounds=3, batch=0.3, grid=GRID, **OPTIONS).models
        np.testing.assert_array_equal(models(clients, again), expected)
        again.__exit__(None, None, None)


@pytest.mark.parametrize("consents", [False, True])
def test_a_rollback_needs_the_consent_of_owners(consents, tmp_path):
    options = {"secure": True, "keep_every": 1, "owner": {"rollbacks": int(consents)}}
    algorithm = ALGORITHMS["PCFedSplit"]
    with federation(tmp_path, algorithm, 3, **options) as (problem, clients, server):
        server.run()
        roll_back(server.folder, 1)
        server.__exit__(None, None, None)
        before = clients["north"].state_path.read_bytes()
        again = Server(server.config, FaultyTransport(clients), server.folder)
        if consents:
            again.run()
            again.finish()
            assert set(again.audit().values()) == {0.0}
            expected = run(problem, algorithm, rounds=3, batch=0.3, grid=GRID, **OPTIONS).models
            np.testing.assert_array_equal(models(clients, again), expected)
        else:
            with pytest.raises(ProtocolError, match="has not consented to go back"):
                again.run()
            assert not again.transport.replies
            assert clients["north"].state_path.read_bytes() == before
        again.__exit__(None, None, None)


def test_an_agent_without_a_key_takes_no_part(tmp_path):
    with federation(tmp_path, ALGORITHMS["FedAvg"], 1, secure=True) as (_, clients, server):
        clients["north"]._secure = None
        with pytest.raises(ValueError, match=r"needs the agent's key, north\.key"):
            server.run()
