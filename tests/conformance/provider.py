"""What every provider must pass. A test module makes a subclass with a fixture `talk` and has it collected."""

from __future__ import annotations

import asyncio
import hashlib
import uuid

import pytest

from skysail.cloud.errors import Gone, Rejected
from skysail.cloud.provider import (
    Container,
    EmptyDir,
    Ended,
    File,
    Mount,
    PersistentDisk,
    ProjectedFiles,
    RunId,
    Running,
    Volume,
)
from tests.conformance.provider_harness import TIMEOUT_SECONDS, ProviderHarness, hear, outcome

NOWHERE = RunId("no-such-pod", "main", 0)


class Places:
    async def test_preparing_twice_is_preparing_once(self, talk: ProviderHarness):
        uid = str(uuid.uuid4())
        first = await talk.provider.create_sandbox(talk.describe(uid))
        assert await talk.provider.create_sandbox(talk.describe(uid)) == first
        assert (await talk.provider.list()).pods == {uid: first}

    async def test_preparing_twice_at_once_is_preparing_once(self, talk: ProviderHarness):
        uid = str(uuid.uuid4())
        addresses = await asyncio.gather(*(talk.provider.create_sandbox(talk.describe(uid)) for _ in range(5)))
        assert len(set(addresses)) == 1
        assert list((await talk.provider.list()).pods) == [uid]

    async def test_a_released_pod_is_gone_with_its_runs(self, talk: ProviderHarness):
        run = await talk.start("echo up; sleep 1000")
        await talk.hear(run, "up")
        await talk.provider.remove_sandbox(run.pod)
        runtime_listing = await talk.provider.list()
        assert (runtime_listing.runs, runtime_listing.pods, runtime_listing.complete) == ({}, {}, True)
        assert await talk.provider.state(run) is None

    async def test_releasing_ends_what_is_followed(self, talk: ProviderHarness):
        run = await talk.start("echo up; sleep 1000")
        following = asyncio.create_task(talk.said(run))
        await talk.hear(run, "up")
        await talk.provider.remove_sandbox(run.pod)
        assert await following == "up\n"

    async def test_releasing_twice_or_the_unknown_is_fine(self, talk: ProviderHarness):
        uid = await talk.pod()
        await asyncio.gather(talk.provider.remove_sandbox(uid), talk.provider.remove_sandbox(uid))
        await talk.provider.remove_sandbox("no-such-pod")

    async def test_a_pod_knows_its_name(self, talk: ProviderHarness):
        uid = await talk.pod(name="pod-7")
        assert (await talk.result("hostname; echo $HOSTNAME; cat /etc/hostname", pod=uid)) == (0, "pod-7\n" * 3)


class Runs:
    @pytest.mark.parametrize(
        ("script", "code", "reason"),
        [
            ("true", 0, "Completed"),
            ("exit 1", 1, "Error"),
            ("exit 37", 37, "Error"),
            ("kill -SEGV $$", 139, "Error"),
            ("kill -KILL $$", 137, "Error"),
            ("kill -TERM $$", 143, "Error"),
        ],
    )
    async def test_an_exit_code_comes_back(self, talk: ProviderHarness, script, code, reason):
        end = await talk.end(await talk.start(script))
        assert (end.code, end.reason) == (code, reason)
        assert end.started is not None
        assert end.started <= end.ended

    async def test_starting_again_does_nothing_while_it_runs_and_afterwards(self, talk: ProviderHarness):
        uid = await talk.pod(Volume("v", EmptyDir()))
        mounts = (Mount(volume="v", path="/v"),)
        run = await talk.start("echo once >> /v/log; echo up; sleep 0.1", pod=uid, mounts=mounts)
        await talk.provider.start(run, talk.shell("echo twice >> /v/log", mounts=mounts))
        await talk.end(run)
        await talk.provider.start(run, talk.shell("echo thrice >> /v/log", mounts=mounts))
        assert await talk.result("cat /v/log", pod=uid, number=1, mounts=mounts) == (0, "once\n")

    async def test_starting_at_once_starts_one(self, talk: ProviderHarness):
        run = RunId(await talk.pod(), "main", 0)
        await asyncio.gather(*(talk.provider.start(run, talk.shell("echo once")) for _ in range(5)))
        assert await talk.said(run) == "once\n"
        assert list((await talk.provider.list()).runs) == [run]

    async def test_the_next_number_is_another_run(self, talk: ProviderHarness):
        uid = await talk.pod()
        runs = [await talk.start(f"exit {number}", pod=uid, number=number) for number in (6, 7)]
        assert [(await talk.end(run)).code for run in runs] == [6, 7]

    async def test_a_started_run_has_a_state(self, talk: ProviderHarness):
        assert await talk.provider.state(await talk.start("true")) is not None
        assert isinstance(await talk.provider.state(await talk.start("sleep 1000")), Running)

    async def test_without_a_place_nothing_starts(self, talk: ProviderHarness):
        with pytest.raises(Gone):
            await talk.provider.start(NOWHERE, talk.shell("true"))

    async def test_a_missing_program_is_told_by_name(self, talk: ProviderHarness):
        run = RunId(await talk.pod(), "main", 0)
        await talk.provider.start(run, Container(name="main", image=talk.image, command=("no-such-program", "-x")))
        end = await talk.end(run)
        assert (end.code, end.reason, end.started) == (128, "StartError", None)
        assert "no-such-program" in end.message

    async def test_an_unknown_image_is_refused_and_leaves_nothing(self, talk: ProviderHarness):
        run = RunId(await talk.pod(), "main", 0)
        with pytest.raises(Rejected, match=r"example\.test/no-such-image:1") as rejected:
            await talk.provider.start(
                run, Container(name="main", image="example.test/no-such-image:1", command=("true",))
            )
        assert rejected.value.reason == "ErrImagePull"
        assert await talk.provider.state(run) is None
        await talk.provider.start(run, talk.shell("exit 5"))
        assert (await talk.end(run)).code == 5

    async def test_env_arguments_and_working_folder_arrive_as_they_are(self, talk: ProviderHarness):
        run = RunId(await talk.pod(), "main", 0)
        odd = "a b\n\"'$(X) é"
        container = Container(
            name="main",
            image=talk.image,
            command=("sh", "-c", 'printf "%s|" "$PWD" "$ODD" "$1" "$2"', "sh"),
            args=(odd, ""),
            env=(("ODD", odd),),
            working_dir="/some/where",
        )
        await talk.provider.start(run, container)
        assert await talk.said(run) == f"/some/where|{odd}|{odd}||"

    async def test_much_env_arrives(self, talk: ProviderHarness):
        env = tuple((f"NAME_{number}", "x" * 1000) for number in range(300))
        assert await talk.result("env | grep -c ^NAME_.*x$", env=env) == (0, "300\n")

    async def test_what_the_program_leaves_as_its_message_comes_back(self, talk: ProviderHarness):
        assert (
            await talk.end(await talk.start("echo last words > /dev/termination-log; exit 3"))
        ).message == "last words\n"
        end = await talk.end(await talk.start("echo hello > /tmp/message", message_path="/tmp/message"))
        assert end.message == "hello\n"

    async def test_files_of_one_run_are_not_in_the_next(self, talk: ProviderHarness):
        uid = await talk.pod()
        assert (await talk.result("touch /tmp/x /root/x /x", pod=uid))[0] == 0
        assert await talk.result("ls -d /tmp/x /root/x /x 2>/dev/null | wc -l", pod=uid, number=1) == (0, "0\n")


class Endings:
    async def test_a_program_is_asked_to_end_and_its_code_is_kept(self, talk: ProviderHarness):
        run = await talk.start("trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.02; done")
        await talk.hear(run, "up")
        await talk.provider.stop(run, TIMEOUT_SECONDS)
        assert ((await talk.end(run)).code, await talk.said(run)) == (9, "up\nbye\n")

    async def test_without_a_handler_term_ends_it(self, talk: ProviderHarness):
        run = await talk.start("echo up; exec sleep 1000")
        await talk.hear(run, "up")
        await talk.provider.stop(run, TIMEOUT_SECONDS)
        assert (await talk.end(run)).code == 143

    async def test_who_does_not_listen_is_killed_with_all_descendants(self, talk: ProviderHarness):
        script = "trap '' TERM; (trap '' TERM HUP; setsid sleep 1000) & echo up; while :; do sleep 0.02; done"
        run = await talk.start(script)
        await talk.hear(run, "up")
        await talk.provider.stop(run, 0.2)
        assert (await talk.end(run)).code == 137
        assert await talk.said(run) == "up\n"  # its output has an end, so nobody is left who could write

    async def test_a_shorter_grace_counts(self, talk: ProviderHarness):
        run = await talk.start("trap '' TERM; echo up; while :; do sleep 0.02; done")
        await talk.hear(run, "up")
        await talk.provider.stop(run, 3600)
        await talk.provider.stop(run, 0)
        assert (await talk.end(run)).code == 137

    async def test_stopping_what_has_ended_changes_nothing(self, talk: ProviderHarness):
        run = await talk.start("exit 4")
        before = await talk.end(run)
        await talk.provider.stop(run, 0)
        assert await talk.provider.state(run) == before

    async def test_stopping_the_unknown_says_so(self, talk: ProviderHarness):
        with pytest.raises(Gone):
            await talk.provider.stop(NOWHERE, 0)

    @pytest.mark.parametrize("turns", [0, 1, 2, 5, 20, 100])
    async def test_stopping_while_it_starts_ends_it(self, talk: ProviderHarness, turns):
        run = RunId(await talk.pod(), "main", 0)
        starting = asyncio.create_task(talk.provider.start(run, talk.shell("exec sleep 1000")))
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        await talk.provider.stop(run, 0)
        await starting
        assert (await talk.end(run)).code == 137

    @pytest.mark.parametrize("turns", [0, 1, 5, 50])
    async def test_releasing_while_it_starts_leaves_nothing(self, talk: ProviderHarness, turns):
        run = RunId(await talk.pod(), "main", 0)
        starting = asyncio.create_task(talk.provider.start(run, talk.shell("exec sleep 1000")))
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        await talk.provider.remove_sandbox(run.pod)
        await asyncio.gather(starting, return_exceptions=True)
        runtime_listing = await talk.provider.list()
        assert (runtime_listing.runs, runtime_listing.pods) == ({}, {})


class Printing:
    async def test_everything_comes_in_order(self, talk: ProviderHarness):
        run = await talk.start("seq 1 600000")
        said = await talk.said(run)
        want = "".join(f"{number}\n" for number in range(1, 600001))
        assert hashlib.sha256(said.encode()).digest() == hashlib.sha256(want.encode()).digest()

    async def test_the_streams_are_kept_apart(self, talk: ProviderHarness):
        run = await talk.start("echo out; echo err >&2; printf end")
        assert (await talk.said(run), await talk.said(run, "stderr")) == ("out\nend", "err\n")

    async def test_who_comes_late_hears_it_from_the_start(self, talk: ProviderHarness):
        run = await talk.start("echo early")
        await talk.end(run)
        assert await talk.said(run) == "early\n"

    async def test_pieces_come_as_they_are_printed(self, talk: ProviderHarness):
        run = await talk.start("printf half; sleep 1000")
        await talk.hear(run, "half")
        assert await talk.is_running(run)

    async def test_two_hear_the_same(self, talk: ProviderHarness):
        run = await talk.start("seq 1 10000")
        first, second = await asyncio.gather(talk.said(run), talk.said(run))
        assert first == second
        assert first.endswith("10000\n")

    async def test_times_do_not_go_back(self, talk: ProviderHarness):
        run = await talk.start("for i in 1 2 3 4 5; do echo $i; sleep 0.01; done")
        times = [piece.at async for piece in talk.provider.output(run)]
        assert times == sorted(times)

    async def test_an_unknown_run_printed_nothing(self, talk: ProviderHarness):
        with pytest.raises(Gone):
            await anext(talk.provider.output(NOWHERE))


class Execs:
    @pytest.mark.parametrize(
        ("script", "want"),
        [
            ("echo out; echo err >&2", (0, "out\n", "err\n")),
            ("exit 7", (7, "", "")),
            ("kill -KILL $$", (137, "", "")),
            ("kill -TERM $$", (143, "", "")),
        ],
    )
    async def test_a_command_beside_a_run_ends_as_it_does(self, talk: ProviderHarness, script, want):
        run = await talk.start("sleep 1000")
        session = await talk.provider.exec(run, ("sh", "-c", script), stdin=False, tty=False)
        assert await outcome(session) == want
        assert await talk.is_running(run)

    async def test_it_sees_the_files_the_processes_and_the_env_of_the_run(self, talk: ProviderHarness):
        run = await talk.start(
            "echo mine > /tmp/x; echo up; exec sleep 98765", env=(("NAME", "value"),), working_dir="/here"
        )
        await talk.hear(run, "up")
        script = "cat /tmp/x; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo; echo $NAME; pwd; hostname"
        session = await talk.provider.exec(run, ("sh", "-c", script), stdin=False, tty=False)
        code, said, _ = await outcome(session)
        assert code == 0
        assert said.startswith("mine\n")
        assert "sleep 98765" in said
        assert said.endswith("value\n/here\npod\n")

    async def test_it_has_no_more_rights_than_the_run(self, talk: ProviderHarness):
        rights = "grep -E 'Cap(Prm|Eff)|NoNewPrivs|^[UG]id' /proc/self/status"
        run = await talk.start(f"{rights}; echo .; sleep 1000")
        of_the_run = await hear(talk.provider.output(run), ".\n")
        session = await talk.provider.exec(run, ("sh", "-c", rights), stdin=False, tty=False)
        assert (await outcome(session))[1] == of_the_run.removesuffix(".\n")

    async def test_input_reaches_it_and_ends(self, talk: ProviderHarness):
        run = await talk.start("sleep 1000")
        session = await talk.provider.exec(run, ("sha256sum",), stdin=True, tty=False)
        data = bytes(range(256)) * 40_000
        await session.write(data)
        await session.close_stdin()
        code, said, _ = await outcome(session)
        assert (code, said.split()[0]) == (0, hashlib.sha256(data).hexdigest())

    async def test_without_input_it_reads_the_end(self, talk: ProviderHarness):
        run = await talk.start("sleep 1000")
        assert await outcome(await talk.provider.exec(run, ("cat",), stdin=False, tty=False)) == (0, "", "")

    async def test_bytes_both_ways_do_not_block_each_other(self, talk: ProviderHarness):
        run = await talk.start("sleep 1000")
        session = await talk.provider.exec(run, ("cat",), stdin=True, tty=False)
        data = b"0123456789abcdef" * 200_000
        reading = asyncio.create_task(outcome(session))
        await session.write(data)
        await session.close_stdin()
        assert await reading == (0, data.decode(), "")

    async def test_a_missing_program_is_refused_by_name(self, talk: ProviderHarness):
        run = await talk.start("sleep 1000")
        with pytest.raises(Rejected, match="no-such-program"):
            await talk.provider.exec(run, ("no-such-program",), stdin=False, tty=False)

    async def test_beside_nothing_there_is_nothing(self, talk: ProviderHarness):
        ended = await talk.start("true")
        await talk.end(ended)
        for run in (NOWHERE, ended):
            with pytest.raises(Gone):
                await talk.provider.exec(run, ("true",), stdin=False, tty=False)

    async def test_it_ends_with_its_run(self, talk: ProviderHarness):
        run = await talk.start("sleep 1000")
        session = await talk.provider.exec(run, ("sleep", "1000"), stdin=False, tty=False)
        await talk.provider.stop(run, 0)
        assert (await outcome(session))[0] == 137

    @pytest.mark.parametrize("tty", [False, True])
    async def test_one_that_is_killed_ends_with_all_that_it_started(self, talk: ProviderHarness, tty):
        run = await talk.start("sleep 1000")
        script = "trap '' TERM HUP; sleep 1000 & echo up; wait"
        session = await talk.provider.exec(run, ("sh", "-c", script), stdin=False, tty=tty)
        output = session.output()
        await hear(output, "\n")  # a terminal may bring the end of a line later than the line
        await session.kill()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert [piece async for piece in output] == []  # nobody holds it open any more
            assert await session.wait() == 137
        await session.kill()
        assert await talk.is_running(run)

    async def test_many_at_once(self, talk: ProviderHarness):
        run = await talk.start("sleep 1000")

        async def one(number: int) -> tuple[int, str, str]:
            script = f"echo {number}; exit {number}"
            return await outcome(await talk.provider.exec(run, ("sh", "-c", script), stdin=False, tty=False))

        assert await asyncio.gather(*map(one, range(10))) == [(number, f"{number}\n", "") for number in range(10)]


class Terminals:
    async def test_a_command_may_have_a_terminal_of_any_size(self, talk: ProviderHarness):
        run = await talk.start("sleep 1000")
        script = "test -t 0 && test -t 1 && test -t 2 && echo yes; read x; stty size; echo $TERM"
        session = await talk.provider.exec(run, ("sh", "-c", script), stdin=True, tty=True)
        await session.resize(101, 43)
        await session.write(b"\n")
        code, said, err = await outcome(session)
        assert (code, err) == (0, "")
        assert said.replace("\r", "").split() == ["yes", "43", "101", "xterm"]

    async def test_ctrl_c_reaches_the_command_and_not_its_run(self, talk: ProviderHarness):
        run = await talk.start("sleep 1000")
        script = "trap 'echo caught; exit 5' INT; echo up; while :; do sleep 0.02; done"
        session = await talk.provider.exec(run, ("sh", "-c", script), stdin=True, tty=True)
        output = session.output()
        await hear(output, "up")
        await session.write(b"\x03")
        assert "caught" in await hear(output, "caught")
        assert await session.wait() == 5
        assert await talk.is_running(run)

    async def test_a_closed_session_hangs_up(self, talk: ProviderHarness):
        uid = await talk.pod(Volume("v", EmptyDir()))
        mounts = (Mount(volume="v", path="/v"),)
        run = await talk.start("sleep 1000", pod=uid, mounts=mounts)
        script = "trap 'echo hung up > /v/said; exit 6' HUP; echo up; while :; do sleep 0.02; done"
        session = await talk.provider.exec(run, ("sh", "-c", script), stdin=True, tty=True)
        await hear(session.output(), "up")
        await session.close()
        await session.close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await session.wait() == 6
        look = await talk.provider.exec(run, ("cat", "/v/said"), stdin=False, tty=False)
        assert await outcome(look) == (0, "hung up\n", "")

    async def test_a_run_may_have_a_terminal(self, talk: ProviderHarness):
        script = "test -t 0 && test -t 1 && echo yes; read line; echo got $line; stty size"
        run = await talk.start(script, tty=True, stdin=True)
        await talk.hear(run, "yes")
        session = await talk.provider.attach(run, stdin=True)
        await session.resize(90, 30)
        await session.write(b"ahoy\n")
        assert (await talk.end(run)).code == 0
        assert "got ahoy\r\n30 90\r\n" in await talk.said(run)
        assert await talk.said(run, "stderr") == ""

    async def test_ctrl_c_reaches_a_run(self, talk: ProviderHarness):
        run = await talk.start("trap 'exit 8' INT; echo up; while :; do sleep 0.02; done", tty=True, stdin=True)
        await talk.hear(run, "up")
        await (await talk.provider.attach(run, stdin=True)).write(b"\x03")
        assert (await talk.end(run)).code == 8


class Visits:
    async def test_a_visitor_hears_what_comes_and_may_speak(self, talk: ProviderHarness):
        run = await talk.start("echo before; while read line; do echo got $line; done", stdin=True)
        await talk.hear(run, "before")
        session = await talk.provider.attach(run, stdin=True)
        output = session.output()
        await session.write(b"ahoy\n")
        assert await hear(output, "got ahoy") == "got ahoy\n"

    async def test_a_visitor_who_leaves_leaves_it_running(self, talk: ProviderHarness):
        run = await talk.start("while read line; do echo got $line; done; echo over", stdin=True)
        for word in ("one", "two"):
            session = await talk.provider.attach(run, stdin=True)
            output = session.output()
            await session.write(f"{word}\n".encode())
            await hear(output, f"got {word}")
            await session.kill()
            await session.close_stdin()
            await session.close()
            await session.close()
        assert await talk.is_running(run)

    async def test_where_input_is_for_one_visitor_it_ends_with_him(self, talk: ProviderHarness):
        run = await talk.start("cat; echo over", stdin=True, stdin_once=True)
        session = await talk.provider.attach(run, stdin=True)
        await session.write(b"ahoy\n")
        await session.close_stdin()
        assert (await talk.end(run)).code == 0
        assert await talk.said(run) == "ahoy\nover\n"

    async def test_a_visitor_learns_the_end(self, talk: ProviderHarness):
        run = await talk.start("read line; exit 12", stdin=True)
        session = await talk.provider.attach(run, stdin=True)
        await session.write(b"\n")
        assert await outcome(session) == (12, "", "")

    async def test_a_visitor_who_does_not_read_does_not_hold_it_up(self, talk: ProviderHarness):
        run = await talk.start("read line; seq 1 2000000; echo over", stdin=True)
        session = await talk.provider.attach(run, stdin=True)
        output = session.output()
        await session.write(b"\n")
        assert (await talk.end(run)).code == 0
        await hear(output, "over")

    async def test_nobody_visits_what_has_ended(self, talk: ProviderHarness):
        run = await talk.start("true")
        await talk.end(run)
        for gone in (run, NOWHERE):
            with pytest.raises(Gone):
                await talk.provider.attach(gone, stdin=False)


class Volumes:
    async def test_scratch_is_shared_by_the_pod_and_outlives_its_runs(self, talk: ProviderHarness):
        uid = await talk.pod(Volume("v", EmptyDir()), Volume("m", EmptyDir(in_memory=True)))
        mounts = (Mount(volume="v", path="/data/v"), Mount(volume="m", path="/data/m"))
        assert (await talk.result("echo 1 > /data/v/x; echo 2 > /data/m/x", pod=uid, mounts=mounts))[0] == 0
        want = (0, "1\n2\n")
        assert await talk.result("cat /data/v/x /data/m/x", pod=uid, mounts=mounts, name="other") == want

    async def test_scratch_begins_empty(self, talk: ProviderHarness):
        for _ in range(2):
            uid = await talk.pod(Volume("v", EmptyDir()))
            script = "ls -A /v | wc -l; touch /v/x"
            assert await talk.result(script, pod=uid, mounts=(Mount(volume="v", path="/v"),)) == (0, "0\n")
            await talk.provider.remove_sandbox(uid)

    async def test_given_files_are_there_with_their_modes(self, talk: ProviderHarness):
        files = (File("a", b"\x00\xff"), File("deep/er/b", b"b\n", 0o400))
        uid = await talk.pod(Volume("v", ProjectedFiles(files)))
        script = "cat /v/a | od -An -tx1; cat /v/deep/er/b; stat -L -c %a /v/a /v/deep/er/b; ls /v"
        want = (0, " 00 ff\nb\n644\n400\na\ndeep\n")
        assert await talk.result(script, pod=uid, mounts=(Mount(volume="v", path="/v"),)) == want

    async def test_given_files_cannot_be_written(self, talk: ProviderHarness):
        uid = await talk.pod(Volume("v", ProjectedFiles((File("a", b"a"),))))
        code, _ = await talk.result("echo x > /v/a", pod=uid, mounts=(Mount(volume="v", path="/v"),))
        assert code != 0

    async def test_given_files_are_replaced_at_once_while_a_program_reads(self, talk: ProviderHarness):
        uid = await talk.pod(Volume("v", ProjectedFiles((File("a", b"0"), File("b", b"0"), File("old", b"")))))
        script = (
            # The old content may go while it is read, but it is never mixed with the new.
            "cd /v; echo up; while :; do now=$(readlink ..data); both=$(cat $now/a $now/b); "
            'case $both in 00|11|22|33|?|"") ;; *) echo torn $both;; esac; '
            'test -e old || test "$both" != 33 || exit 0; done'
        )
        run = await talk.start(script, pod=uid, mounts=(Mount(volume="v", path="/v"),))
        await talk.hear(run, "up")
        for content in (b"1", b"2", b"3"):
            await talk.provider.update(uid, "v", (File("a", content), File("b", content), File("new", b"")))
        assert (await talk.end(run)).code == 0
        assert "torn" not in await talk.said(run)

    async def test_only_given_files_can_be_replaced(self, talk: ProviderHarness):
        uid = await talk.pod(Volume("v", EmptyDir()))
        with pytest.raises(Rejected):
            await talk.provider.update(uid, "v", ())
        for pod, volume in (("no-such-pod", "v"), (uid, "no-such-volume")):
            with pytest.raises(Gone):
                await talk.provider.update(pod, volume, ())

    async def test_a_part_of_a_volume_may_be_mounted(self, talk: ProviderHarness):
        uid = await talk.pod(Volume("v", EmptyDir()), Volume("f", ProjectedFiles((File("only.yaml", b"x: 1\n"),))))
        mounts = (
            Mount(volume="v", path="/part", sub_path="deep/part"),
            Mount(volume="v", path="/whole"),
            Mount(volume="f", path="/etc/app/only.yaml", sub_path="only.yaml"),
        )
        script = "echo hi > /part/x; cat /whole/deep/part/x /etc/app/only.yaml"
        assert await talk.result(script, pod=uid, mounts=mounts) == (0, "hi\nx: 1\n")

    async def test_a_part_that_leads_out_of_its_volume_is_refused(self, talk: ProviderHarness):
        uid = await talk.pod(Volume("v", EmptyDir()))
        assert (await talk.result("ln -s / /v/out", pod=uid, mounts=(Mount(volume="v", path="/v"),)))[0] == 0
        for sub_path in ("out/etc", "../.."):
            with pytest.raises(Rejected, match="leads out"):
                await talk.start("true", pod=uid, number=1, mounts=(Mount(volume="v", path="/v", sub_path=sub_path),))

    async def test_a_read_only_mount_is_read_only(self, talk: ProviderHarness):
        uid = await talk.pod(Volume("v", EmptyDir()))
        mounts = (Mount(volume="v", path="/ro", read_only=True), Mount(volume="v", path="/rw"))
        assert await talk.result("echo 1 > /rw/x; cat /ro/x; echo 2 > /ro/x || exit 3", pod=uid, mounts=mounts) == (
            (3, "1\n")
        )

    async def test_a_disk_keeps_its_content_over_pods(self, talk: ProviderHarness):
        disk = f"disk-{uuid.uuid4()}"
        mounts = (Mount(volume="d", path="/d"),)
        first = await talk.pod(Volume("d", PersistentDisk(disk)))
        assert (await talk.result("echo kept > /d/x", pod=first, mounts=mounts))[0] == 0
        await talk.provider.remove_sandbox(first)
        second = await talk.pod(Volume("d", PersistentDisk(disk)))
        assert await talk.result("cat /d/x", pod=second, mounts=mounts) == (0, "kept\n")
        third = await talk.pod(Volume("d", PersistentDisk(disk, read_only=True)))
        assert await talk.result("cat /d/x; touch /d/y || exit 3", pod=third, mounts=mounts) == (3, "kept\n")

    async def test_a_mount_of_no_volume_is_refused(self, talk: ProviderHarness):
        with pytest.raises(Rejected, match="no-such"):
            await talk.start("true", mounts=(Mount(volume="no-such", path="/v"),))


class Watching:
    async def test_every_change_is_told_and_the_list_agrees(self, talk: ProviderHarness):
        changes = talk.provider.changes()
        runs = await asyncio.gather(*(talk.start(f"exit {code}") for code in range(5)))
        told: dict[RunId, object] = {}
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while sum(isinstance(state, Ended) for state in told.values()) < 5:
                run = await anext(changes)
                told[run] = await talk.provider.state(run)
        runtime_listing = await talk.provider.list()
        assert runtime_listing.runs == told
        assert runtime_listing.complete
        assert sorted(state.code for state in told.values()) == list(range(5))  # type: ignore[attr-defined]
        assert set(told) == set(runs)

    async def test_twenty_pods_at_once(self, talk: ProviderHarness):
        async def one(number: int) -> tuple[int, str]:
            uid = await talk.pod(name=f"pod-{number}")
            result = await talk.result(f"hostname; exit {number}", pod=uid)
            await talk.provider.remove_sandbox(uid)
            return result

        assert await asyncio.gather(*map(one, range(20))) == [(number, f"pod-{number}\n") for number in range(20)]
        assert (await talk.provider.list()).pods == {}

    async def test_the_unknown_has_no_state(self, talk: ProviderHarness):
        assert await talk.provider.state(NOWHERE) is None

    async def test_what_a_run_uses_is_told(self, talk: ProviderHarness):
        busy = await talk.start("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo up; sleep 1000")
        await talk.hear(busy, "up")
        ended = await talk.start("true")
        await talk.end(ended)
        used = await talk.provider.usage()
        assert used[busy].cpu_seconds > 0
        assert used[busy].memory > 100_000
        assert ended not in used


class Dialling:
    async def test_a_port_of_the_pod_answers(self, talk: ProviderHarness):
        script = (
            "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
            "c, _ = s.accept()\nheard = b''\nwhile data := c.recv(65536): heard += data\nc.sendall(heard.upper())"
        )
        run = RunId(await talk.pod(), "main", 0)
        container = Container(name="main", image=talk.python_image, command=("python3", "-c", script))
        await talk.provider.start(run, container)
        port = int(await hear(talk.provider.output(run), "\n"))
        port_connection = await talk.provider.connect(run.pod, port)
        await port_connection.write(b"ahoy" * 100_000)
        await port_connection.write_eof()
        heard = b""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while data := await port_connection.read():
                heard += data
        await port_connection.close()
        assert heard == b"AHOY" * 100_000

    async def test_where_nobody_listens_it_is_said(self, talk: ProviderHarness):
        with pytest.raises(Rejected, match="port 1"):
            await talk.provider.connect(await talk.pod(), 1)
        with pytest.raises(Gone):
            await talk.provider.connect("no-such-pod", 80)


class ProviderConformance(Places, Runs, Endings, Printing, Execs, Terminals, Visits, Volumes, Watching, Dialling):
    """Everything. For a provider with fewer abilities, a suite is put together from the parts that it promises."""
