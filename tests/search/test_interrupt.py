import os
import signal

from autotune.search.interrupt import Interrupt


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
