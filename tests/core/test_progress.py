"""What whoever watches is told while a method, or a study's finish, goes on."""

from predbayes.progress import Event, Lines, at, listening, tell, tell_step


class TestLines:
    def test_of_a_training_there_is_a_line_every_three_seconds(self):
        seconds, written = iter(range(100)), []
        with listening([Lines(written.append, lambda: float(next(seconds)))]), at("Basel"):
            for epoch in range(1, 8):
                tell(Event("epoch", epoch=epoch, num_epochs=7, loss=0.5))
        assert written == [
            "Basel: epoch 3 of 7, loss 0.500",
            "Basel: epoch 6 of 7, loss 0.500",
        ]

    def test_of_a_step_there_is_one_at_once(self):
        written = []
        with listening([Lines(written.append, lambda: 0.0)]):
            tell_step("score the model")
            tell(Event("epoch", epoch=1, num_epochs=7))
            tell_step("write the report")
        assert written == ["score the model", "write the report"]
