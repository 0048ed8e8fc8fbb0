"""Large rows leave in the form that is the faster one here; small ones as batches."""

from edge_agent.delivery.copy_lane import FIRST_PAUSE, LARGE_ROW, MEASURED, MEASURED_AGAIN_AFTER, FormChoice
from edge_agent.delivery.shipment import Form

SIZE = 4 << 20


def chosen(choice: FormChoice, shipments: int, *, batch: float, chain: float) -> list[Form]:
    """Let shipments be stored in the form that is chosen, where they take so long; give the forms."""
    forms = []
    for _ in range(shipments):
        form = choice.of(LARGE_ROW)
        choice.note_stored(form, SIZE, chain if form is Form.CHAIN else batch)
        forms.append(form)
    return forms


def test_both_forms_are_measured_and_then_the_faster_one_is_taken() -> None:
    first = [Form.BATCH] * MEASURED + [Form.CHAIN] * MEASURED
    assert chosen(FormChoice(), 2 * MEASURED + 50, batch=0.2, chain=0.1) == first + [Form.CHAIN] * 50
    assert chosen(FormChoice(), 2 * MEASURED + 50, batch=0.1, chain=0.4) == first + [Form.BATCH] * 50


def test_a_region_that_has_changed_is_noticed() -> None:
    choice = FormChoice()
    chosen(choice, 100, batch=0.1, chain=0.4)
    forms = chosen(choice, 20 * MEASURED_AGAIN_AFTER, batch=0.1, chain=0.01)
    assert forms[-1] is Form.CHAIN
    assert forms.count(Form.BATCH) < 19 * MEASURED_AGAIN_AFTER


def test_small_rows_leave_as_batches() -> None:
    choice = FormChoice()
    chosen(choice, 100, batch=0.2, chain=0.1)
    assert choice.of(LARGE_ROW - 1) is Form.BATCH


def test_after_a_chain_that_broke_batches_leave_for_longer_each_time() -> None:
    choice = FormChoice()
    chosen(choice, 100, batch=0.2, chain=0.1)
    for pause in (FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE):
        choice.note_broken()
        forms = [choice.of(LARGE_ROW)]
        while forms[-1] is Form.BATCH:
            choice.note_stored(Form.BATCH, SIZE, 0.2)
            forms.append(choice.of(LARGE_ROW))
        assert len(forms) == pause + 1


def test_two_answers_that_are_read_at_once_do_not_look_infinitely_fast() -> None:
    choice = FormChoice()
    for _ in range(MEASURED):
        choice.note_stored(Form.BATCH, SIZE, 0.4)
        choice.note_stored(Form.BATCH, SIZE, 0.0)
    chosen(choice, MEASURED, batch=0.2, chain=0.1)
    assert choice.of(LARGE_ROW) is Form.CHAIN
