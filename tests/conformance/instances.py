"""What every cloud that charges must pass. A test module makes a subclass with a fixture `customer`."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from skysail.cloud.account import GpuRequest
from skysail.cloud.errors import Gone, ProviderError, Rejected, Unsupported
from skysail.cloud.machine_prices import MachineRequest, price_offers
from skysail.cloud.offers import OfferQuery, rank
from skysail.cloud.provider import Container, PersistentDisk, Volume
from tests.conformance.account_harness import AccountHarness, with_container
from tests.conformance.provider_harness import TIMEOUT_SECONDS, hear, outcome

NOBODY = "no-such-instance"


class Named:
    async def test_its_account_has_a_name_that_a_claim_can_carry(self, customer: AccountHarness):
        assert 0 < len(customer.cloud.account) <= 256


class Offering:
    async def test_offers_listed_have_names_prices_and_a_time(self, customer: AccountHarness):
        listed = await customer.cloud.offers()
        assert listed.offers
        assert listed.at > 0
        for offer in listed.offers:
            assert offer.provider == customer.cloud.name
            assert offer.usd_per_hour > 0
            assert max(map(len, (offer.gpu_type, offer.region, offer.cloud_type))) <= 256
            assert (offer.gpu_memory > 0) == bool(offer.gpu_type)
        places = [(offer.gpu_type.casefold(), offer.cloud_type, offer.region) for offer in listed.offers]
        assert len(set(places)) == len(places)

    async def test_offers_listed_twice_are_equal_if_nothing_changes(self, customer: AccountHarness):
        assert (await customer.cloud.offers()).offers == (await customer.cloud.offers()).offers

    @pytest.mark.parametrize("is_gpu", [True, False])
    async def test_create_cheapest_offer_is_billed_at_its_price_and_place(self, customer: AccountHarness, is_gpu):
        count = 2 if is_gpu else 0
        listed = await customer.cloud.offers()
        size = customer.launch_spec().container.machine_size
        priced = price_offers(listed, MachineRequest(gpu_count=count, size=size))
        best = rank(priced, OfferQuery(gpu_count=count)).candidates[0]
        gpus = GpuRequest(best.gpu_type, count) if is_gpu else None
        spec = replace(customer.launch_spec(gpu=gpus), region=best.region, cloud_type=best.cloud_type)
        made = await customer.cloud.create(spec)
        assert made.usd_per_hour == pytest.approx(best.total(count))
        assert best.region in {"", made.region}

    async def test_create_unknown_region_is_rejected_and_nothing_is_made(self, customer: AccountHarness):
        with pytest.raises(Rejected, match="atlantis-1") as rejected:
            await customer.cloud.create(replace(customer.launch_spec(), region="atlantis-1"))
        assert rejected.value.reason.isalnum()
        assert await customer.mine() == {}

    async def test_create_unknown_tier_is_rejected_and_nothing_is_made(self, customer: AccountHarness):
        with pytest.raises(Rejected, match="NO-SUCH-TIER"):
            await customer.cloud.create(replace(customer.launch_spec(), cloud_type="NO-SUCH-TIER"))
        assert await customer.mine() == {}


class Creating:
    async def test_what_was_made_says_for_whom(self, customer: AccountHarness):
        spec = customer.launch_spec()
        made = await customer.cloud.create(spec)
        assert (made.claim, made.cluster) == (spec.claim, customer.cluster)
        assert made.state in {"starting", "running"}
        assert made.ended is None
        assert made.usd_per_hour >= 0

    async def test_ids_differ(self, customer: AccountHarness):
        made = await asyncio.gather(*(customer.cloud.create(customer.launch_spec()) for _ in range(10)))
        assert len({instance.id for instance in made}) == 10
        assert len({instance.claim for instance in made}) == 10

    async def test_it_comes_to_run(self, customer: AccountHarness):
        running = await customer.running()
        assert running.started is not None
        assert running.created <= running.started

    async def test_the_same_claim_may_be_used_again_after_the_end(self, customer: AccountHarness):
        first = await customer.running(customer.launch_spec(claim="again"))
        await customer.ended(first.id)
        second = await customer.running(customer.launch_spec(claim="again"))
        assert second.id != first.id
        assert (await customer.seen(second.id)).state == "running"

    async def test_an_unknown_gpu_is_refused_and_nothing_is_made(self, customer: AccountHarness):
        with pytest.raises(Rejected, match="GTX-1") as rejected:
            await customer.cloud.create(customer.launch_spec(gpu=GpuRequest("GTX-1")))
        assert rejected.value.reason.isalnum()
        assert await customer.mine() == {}

    @pytest.mark.parametrize("seconds", [0.0, 1e9])
    async def test_a_deadline_that_cannot_be_kept_is_refused(self, customer: AccountHarness, seconds):
        with pytest.raises(Rejected):
            await customer.cloud.create(customer.launch_spec(seconds=seconds))
        assert await customer.mine() == {}

    async def test_a_disk_of_the_machine_is_refused(self, customer: AccountHarness):
        with pytest.raises(Rejected, match="d"):
            await customer.cloud.create(customer.launch_spec("true", Volume("d", PersistentDisk("disk-1"))))
        assert await customer.mine() == {}


class Listings:
    async def test_it_tells_all_with_claim_and_cluster(self, customer: AccountHarness):
        specs = [customer.launch_spec() for _ in range(5)]
        made = await asyncio.gather(*(customer.cloud.create(spec) for spec in specs))
        for instance in made:
            await customer.seen(instance.id)
        found = await customer.mine()
        assert {instance.claim for instance in found.values()} == {spec.claim for spec in specs}
        assert set(found) == {instance.id for instance in made}

    async def test_asking_twice_changes_nothing(self, customer: AccountHarness):
        running = await customer.running()
        await customer.seen(running.id)
        assert await customer.mine() == await customer.mine()

    async def test_both_ways_to_ask_say_the_same(self, customer: AccountHarness):
        running = await customer.running()
        assert await customer.seen(running.id) == await customer.cloud.get(running.id)

    async def test_the_unknown_is_not_there(self, customer: AccountHarness):
        assert await customer.cloud.get(NOBODY) is None

    async def test_a_change_is_told_by_the_claim(self, customer: AccountHarness):
        told = asyncio.ensure_future(_heard(customer.cloud.watch(), "told"))
        made = await customer.cloud.create(customer.launch_spec(claim="told"))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not told.done():  # a follower far away may have begun after the creation
                await customer.cloud.terminate(made.id, 0)
                await asyncio.wait({told}, timeout=0.05)
        assert await told


async def _heard(changes: AsyncIterator[str], claim: str) -> bool:
    """Whether it is told. Instances of others at the same account may change meanwhile."""
    async for each in changes:
        if each == claim:
            return True
    return False


class Exits:
    @pytest.mark.parametrize("code", [0, 1, 37])
    async def test_an_exit_code_comes_back(self, customer: AccountHarness, code):
        made = await customer.cloud.create(customer.short(code))
        exit_ = await customer.exited(made.id)
        assert (exit_.code, exit_.reason) == (code, "Completed" if code == 0 else "Error")

    async def test_what_has_exited_can_be_ended_and_keeps_its_code(self, customer: AccountHarness):
        made = await customer.cloud.create(customer.short(37))
        await customer.exited(made.id)
        ended = await customer.ended(made.id)
        assert ended.exit is not None
        assert ended.exit.code == 37

    async def test_the_deadline_ends_it_whatever_becomes_of_us(self, customer: AccountHarness):
        made = await customer.cloud.create(customer.launch_spec(seconds=0.3))
        ended = await customer.until(made.id, lambda now: now.state == "ended")
        assert ended.exit is not None
        assert ended.exit.reason == "DeadlineExceeded"


class Ends:
    async def test_an_end_is_confirmed_by_both_ways_to_ask(self, customer: AccountHarness):
        running = await customer.running()
        ended = await customer.ended(running.id)
        assert ended.ended is not None
        assert ended.ended >= ended.created
        assert ended.usd_total is not None
        listed = (await customer.mine()).get(running.id)
        assert listed is None or listed.state == "ended"

    async def test_ending_twice_or_at_once_is_ending_once(self, customer: AccountHarness):
        running = await customer.running()
        await asyncio.gather(*(customer.cloud.terminate(running.id, 0) for _ in range(3)))
        first = await customer.until(running.id, lambda now: now.state == "ended")
        assert await customer.ended(running.id) == first

    async def test_ending_the_unknown_says_so(self, customer: AccountHarness):
        with pytest.raises(Gone):
            await customer.cloud.terminate(NOBODY, 0)

    async def test_ending_what_starts_ends_it(self, customer: AccountHarness):
        made = await customer.cloud.create(customer.launch_spec())
        assert (await customer.ended(made.id)).state == "ended"

    async def test_a_shorter_grace_counts(self, customer: AccountHarness):
        stubborn = customer.launch_spec("trap '' TERM; echo up; while :; do sleep 0.02; done")
        running = await customer.running(stubborn)
        await customer.cloud.terminate(running.id, 3000)
        assert (await customer.ended(running.id, 0)).state == "ended"

    async def test_ending_one_leaves_the_others(self, customer: AccountHarness):
        one, two = [await customer.running() for _ in range(2)]
        await customer.ended(one.id)
        other = await customer.cloud.get(two.id)
        assert other is not None
        assert other.state == "running"


class Printing:
    async def test_it_prints_from_its_start_to_its_end(self, customer: AccountHarness):
        made = await customer.cloud.create(customer.short())
        said = await customer.said(made.id)
        assert said.endswith("\n")
        assert await customer.said(made.id) == said

    async def test_it_can_be_read_after_the_end(self, customer: AccountHarness):
        made = await customer.cloud.create(customer.short())
        await customer.exited(made.id)
        await customer.ended(made.id)
        assert await customer.said(made.id) != ""

    async def test_ending_it_ends_what_is_followed(self, customer: AccountHarness):
        running = await customer.running()
        following = asyncio.create_task(customer.said(running.id))
        await hear(customer.cloud.output(running.id), "\n")  # it runs, but may not have spoken yet
        await customer.ended(running.id)
        assert (await following).endswith("\n")

    async def test_the_unknown_printed_nothing(self, customer: AccountHarness):
        with pytest.raises(Gone):
            await customer.said(NOBODY)


class CloudConformance(Named, Offering, Creating, Listings, Exits, Ends, Printing):
    """For every cloud."""


class Closed:
    """For a cloud that nobody can enter."""

    async def test_what_it_cannot_do_is_said(self, customer: AccountHarness):
        features = customer.cloud.features
        assert (features.exec, features.attach, features.port_forward) == (False, False, False)
        running = await customer.running()
        for attempt in (
            customer.cloud.exec(running.id, ("true",), stdin=False, tty=False),
            customer.cloud.attach(running.id, stdin=False),
            customer.cloud.dial(running.id, 80),
        ):
            with pytest.raises(Unsupported):
                await attempt


class Real:
    """For a cloud that runs what it is told."""

    async def test_what_the_program_prints_comes_back(self, customer: AccountHarness):
        made = await customer.cloud.create(customer.short())
        assert await customer.said(made.id) == "ahoy\n"

    async def test_the_streams_are_kept_apart_and_pieces_are_in_order(self, customer: AccountHarness):
        made = await customer.cloud.create(customer.launch_spec("seq 1 20000; echo err >&2"))
        pieces = [piece async for piece in customer.cloud.output(made.id)]
        heard = b"".join(piece.data for piece in pieces if piece.stream == "stdout").decode()
        assert heard == "".join(f"{number}\n" for number in range(1, 20001))
        assert b"".join(piece.data for piece in pieces if piece.stream == "stderr") == b"err\n"
        assert [piece.at for piece in pieces] == sorted(piece.at for piece in pieces)

    async def test_a_program_is_asked_to_end(self, customer: AccountHarness):
        made = await customer.running(customer.launch_spec("trap 'exit 9' TERM; echo up; while :; do sleep 0.02; done"))
        await hear(customer.cloud.output(made.id), "up")
        ended = await customer.ended(made.id, TIMEOUT_SECONDS)
        assert ended.exit is not None
        assert ended.exit.code == 9

    async def test_an_unknown_image_is_told(self, customer: AccountHarness):
        spec = customer.launch_spec()
        container = Container(name="main", image="example.test/no-such-image:1", command=("true",))
        try:
            made = await customer.cloud.create(with_container(spec, container))
        except Rejected as rejected:  # from a cloud that pulls the image first
            reason, message = rejected.reason, str(rejected)
            running = await customer.mine()
        else:
            exit_ = await customer.exited(made.id)
            reason, message, running = exit_.reason, exit_.message, {}
            assert exit_.code == 128
        assert (reason, running) == ("ErrImagePull", {})
        assert "example.test/no-such-image:1" in message


class Entering:
    """For a cloud with the abilities `exec`, `attach` and `port_forward`."""

    @pytest.mark.parametrize(
        ("script", "want"),
        [("echo out; echo err >&2", (0, "out\n", "err\n")), ("exit 7", (7, "", "")), ("kill -KILL $$", (137, "", ""))],
    )
    async def test_a_command_ends_as_it_does(self, customer: AccountHarness, script, want):
        running = await customer.running()
        session = await customer.cloud.exec(running.id, ("sh", "-c", script), stdin=False, tty=False)
        assert await outcome(session) == want
        await session.close()

    async def test_bytes_both_ways_do_not_block_each_other(self, customer: AccountHarness):
        running = await customer.running()
        session = await customer.cloud.exec(running.id, ("cat",), stdin=True, tty=False)
        data = b"0123456789abcdef" * 100_000
        reading = asyncio.create_task(outcome(session))
        await session.write(data)
        await session.close_stdin()
        assert await reading == (0, data.decode(), "")
        await session.close()

    async def test_a_terminal_has_a_size(self, customer: AccountHarness):
        running = await customer.running()
        session = await customer.cloud.exec(running.id, ("sh", "-c", "read x; stty size"), stdin=True, tty=True)
        await session.resize(101, 43)
        await session.write(b"\n")
        code, said, _ = await outcome(session)
        assert (code, said.split()) == (0, ["43", "101"])
        await session.close()
        await session.close()

    async def test_a_missing_program_is_refused_by_name(self, customer: AccountHarness):
        running = await customer.running()
        try:
            session = await customer.cloud.exec(running.id, ("no-such-program",), stdin=False, tty=False)
        except Rejected as rejected:
            message = str(rejected)
        else:  # from a cloud that starts it by a program of its own, as a shell does
            code, _, message = await outcome(session)
            assert code == 127
            await session.close()
        assert "no-such-program" in message

    async def test_a_command_can_be_killed(self, customer: AccountHarness):
        running = await customer.running()
        session = await customer.cloud.exec(running.id, ("sleep", "1000"), stdin=False, tty=False)
        await session.kill()
        assert await outcome(session) == (137, "", "")
        await session.close()

    async def test_many_commands_at_once(self, customer: AccountHarness):
        running = await customer.running()

        async def one(number: int) -> tuple[int, str, str]:
            script = f"echo {number}; exit {number}"
            return await outcome(await customer.cloud.exec(running.id, ("sh", "-c", script), stdin=False, tty=False))

        assert await asyncio.gather(*map(one, range(5))) == [(number, f"{number}\n", "") for number in range(5)]

    async def test_a_visitor_hears_and_speaks_and_leaves_it_running(self, customer: AccountHarness):
        spec = customer.launch_spec("echo before; while read line; do echo got $line; done")
        running = await customer.running(with_container(spec, replace(spec.container, stdin=True)))
        await hear(customer.cloud.output(running.id), "before")
        session = await customer.cloud.attach(running.id, stdin=True)
        output = session.output()
        await session.write(b"ahoy\n")
        assert "got ahoy" in await hear(output, "got ahoy")
        await session.close()
        now = await customer.cloud.get(running.id)
        assert now is not None
        assert now.state == "running"

    async def test_a_port_answers(self, customer: AccountHarness):
        script = (
            "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
            "c, _ = s.accept()\nheard = b''\nwhile data := c.recv(65536): heard += data\nc.sendall(heard.upper())\n"
            # The program stays: where a connection leads through its sandbox, the sandbox must not end before it.
            "c.close()\nimport time; time.sleep(1000)"
        )
        container = Container(name="main", image=customer.python_image, command=("python3", "-c", script))
        running = await customer.running(with_container(customer.launch_spec(), container))
        port = int(await hear(customer.cloud.output(running.id), "\n"))
        port_connection = await customer.cloud.dial(running.id, port)
        await port_connection.write(b"ahoy" * 50_000)
        await port_connection.write_eof()
        heard = b""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while data := await port_connection.read():
                heard += data
        await port_connection.close()
        assert heard == b"AHOY" * 50_000

    async def test_last_bytes_of_a_program_that_exits_arrive_or_the_connection_breaks(self, customer: AccountHarness):
        """The end of the data is never taken for the end of a connection that lost some of it."""
        script = (
            "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
            # Input that is not read makes the kernel reset the connection when the program exits.
            "c, _ = s.accept(); c.recv(1); c.sendall(b'ahoy' * 250_000)"
        )
        container = Container(name="main", image=customer.python_image, command=("python3", "-c", script))
        running = await customer.running(with_container(customer.launch_spec(), container))
        port = int(await hear(customer.cloud.output(running.id), "\n"))
        port_connection = await customer.cloud.dial(running.id, port)
        await port_connection.write(b"twelve bytes")
        heard = b""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while data := await port_connection.read():
                    heard += data
            assert heard == b"ahoy" * 250_000
        except (ProviderError, ConnectionError):
            assert (b"ahoy" * 250_000).startswith(heard)
        finally:
            await port_connection.close()

    async def test_where_nobody_listens_it_is_said(self, customer: AccountHarness):
        running = await customer.running()
        with pytest.raises(Rejected, match="port 1"):
            await customer.cloud.dial(running.id, 1)

    async def test_nobody_enters_what_does_not_run(self, customer: AccountHarness):
        ended = await customer.cloud.create(customer.short())
        await customer.exited(ended.id)
        for instance in (NOBODY, ended.id):
            for attempt in (
                customer.cloud.exec(instance, ("true",), stdin=False, tty=False),
                customer.cloud.attach(instance, stdin=False),
                customer.cloud.dial(instance, 80),
            ):
                with pytest.raises(ProviderError):
                    await attempt


class Gangs:
    """For a cloud with the feature `gang` that runs what it is told."""

    async def test_ranks_reach_each_other_by_address_and_by_name(self, customer: AccountHarness):
        nonce = uuid.uuid4().hex
        server = (
            "import os, socket; s = socket.create_server(('', int(os.environ['MASTER_PORT'])))\n"
            "print('up', flush=True)\n"
            f"c, _ = s.accept(); c.sendall(b'{nonce}'); c.close()"
        )
        client = (
            "import os, socket, time\nfor _ in range(600):\n try: c = socket.create_connection((ADDRESS, "
            "int(os.environ['MASTER_PORT']))); break\n except OSError: time.sleep(0.05)\n"
            "print(os.environ['RANK'], os.environ['WORLD_SIZE'], c.recv(64).decode(), flush=True)"
        )
        for address in ("os.environ['MASTER_ADDR']", "'rank-0.gang'"):
            made = await customer.cloud.create(customer.gang(server, client.replace("ADDRESS", address)))
            assert (await customer.said(made.id, rank=1)) == f"1 2 {nonce}\n"
            assert (await customer.exited(made.id)).code == 0
            ended = await customer.ended(made.id)
            assert [member.exit.code for member in ended.ranks if member.exit] == [0, 0]
            assert await customer.said(made.id, rank=0) == "up\n"

    async def test_a_failing_rank_ends_the_others_and_is_named(self, customer: AccountHarness):
        made = await customer.cloud.create(customer.gang("import time; time.sleep(3600)", "raise SystemExit(37)"))
        exit_ = await customer.exited(made.id)
        assert (exit_.code, exit_.reason) == (37, "Error")
        assert "Rank 1" in exit_.message
        first, second = (await customer.ended(made.id)).ranks
        assert first.exit is not None
        assert second.exit is not None
        assert (first.exit.code != 0, second.exit.code) == (True, 37)
        assert (first.exit.reason, second.exit.reason) == ("GangFailed", "Error")

    async def test_all_members_are_billed(self, customer: AccountHarness):
        one = await customer.cloud.create(customer.launch_spec(gpu=customer.gang_gpus))
        two = await customer.cloud.create(customer.gang("", ""))
        assert two.usd_per_hour == pytest.approx(2 * one.usd_per_hour)

    async def test_replicas_of_one_pod_are_one_program(self, customer: AccountHarness):
        spec = customer.gang("import os, sys; print('rank', *sys.argv[1:], os.environ['WORLD_SIZE'])")
        (member,) = spec.members
        words = replace(member.container, args=("{rank}", "{world_size}"))
        made = await customer.cloud.create(replace(spec, members=(replace(member, container=words),), replicas=2))
        assert sorted((await customer.said(made.id)).splitlines()) == ["[0] rank 0 2 2", "[1] rank 1 2 2"]
        assert (await customer.exited(made.id)).code == 0
        await customer.ended(made.id)

    async def test_replicas_of_one_pod_have_the_exit_code_of_the_one_that_failed(self, customer: AccountHarness):
        spec = customer.gang("import os, time; os.environ['RANK'] == '1' and os._exit(3); time.sleep(3600)")
        made = await customer.cloud.create(replace(spec, replicas=2))
        exit_ = await customer.exited(made.id)
        assert (exit_.code, exit_.reason) == (3, "Error")
        assert "Rank 1" in exit_.message
        await customer.ended(made.id)


class OpenGangs(Gangs):
    """For a cloud whose ranks can be entered, and may have different images."""

    async def test_no_rank_starts_if_one_cannot(self, customer: AccountHarness):
        spec = customer.gang("print('ran')", "print('ran')")
        first, second = spec.members
        broken = replace(second.container, image="example.test/no-such-image:1")
        made = await customer.cloud.create(replace(spec, members=(first, replace(second, container=broken))))
        exit_ = await customer.exited(made.id)
        assert (exit_.code, exit_.reason) == (128, "ErrImagePull")
        assert "Rank 1" in exit_.message

    async def test_a_command_runs_beside_the_rank_that_is_named(self, customer: AccountHarness):
        made = await customer.running(customer.gang(*["import time; time.sleep(3600)"] * 2))
        for number in range(2):
            session = await customer.cloud.exec(made.id, ("hostname",), stdin=False, tty=False, rank=number)
            assert await outcome(session) == (0, f"rank-{number}\n", "")
            await session.close()
        with pytest.raises(Gone):
            await customer.cloud.exec(made.id, ("hostname",), stdin=False, tty=False, rank=2)

    async def test_a_visitor_hears_and_speaks_to_the_rank_that_is_named(self, customer: AccountHarness):
        script = (
            "import os, sys\nprint('before', flush=True)\n"
            "for line in sys.stdin: print('rank', os.environ['RANK'], 'got', line, flush=True)"
        )
        spec = customer.gang(script, script)
        members = tuple(replace(member, container=replace(member.container, stdin=True)) for member in spec.members)
        made = await customer.running(replace(spec, members=members))
        for number in range(2):
            await hear(customer.cloud.output(made.id, rank=number), "before")
            session = await customer.cloud.attach(made.id, stdin=True, rank=number)
            output = session.output()
            await session.write(b"ahoy\n")
            assert f"rank {number} got ahoy" in await hear(output, "got ahoy")
            await session.close()
        with pytest.raises(Gone):
            await customer.cloud.attach(made.id, stdin=False, rank=2)

    async def test_a_port_of_the_rank_that_is_named_answers(self, customer: AccountHarness):
        script = (
            "import os, socket, time\n"
            "s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
            "c, _ = s.accept(); c.sendall(b'rank ' + os.environ['RANK'].encode()); c.close(); time.sleep(3600)"
        )
        made = await customer.running(customer.gang(script, script))
        for number in range(2):
            port = int(await hear(customer.cloud.output(made.id, rank=number), "\n"))
            port_connection = await customer.cloud.dial(made.id, port, rank=number)
            heard = b""
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while data := await port_connection.read():
                    heard += data
            await port_connection.close()
            assert heard == f"rank {number}".encode()
        with pytest.raises(Gone):
            await customer.cloud.dial(made.id, port, rank=2)
