import os
import signal

import pytest

from autotune.search.interrupt import Interrupt, end_as_by_ctrl_c


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
        end_as_by_ctrl_c()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_outside_of_a_search_what_ends_a_program_is_a_ctrl_c(number: signal.Signals):
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(number, signal.SIG_DFL)
        end_as_by_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
