import os
import signal

import pytest

from autotune.search.interrupt import Interrupt, end_on_hang_up


def test_the_first_request_drains_the_second_ends():
    interrupt = Interrupt()
    assert (interrupt.draining, interrupt.ending) == (False, False)
    interrupt.request()
    assert (interrupt.draining, interrupt.ending) == (True, False)
    interrupt.request()
    assert (interrupt.draining, interrupt.ending) == (True, True)


def test_both_signals_count_and_the_old_handlers_come_back():
    interrupt = Interrupt()
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with interrupt.on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.draining
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.ending
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_terminal_that_hangs_up_asks_to_drain_unless_that_is_ignored():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        interrupt = Interrupt()
        with interrupt.on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupt.draining
            assert not interrupt.ending
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        with interrupt.on_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        end_on_hang_up()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_of_a_search_a_hang_up_is_a_ctrl_c():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        end_on_hang_up()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
