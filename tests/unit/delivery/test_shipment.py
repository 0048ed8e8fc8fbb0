"""A shipment counts for what it puts on the wire."""

from edge_agent.core.records import RECORD_OVERHEAD, Lane
from edge_agent.delivery.shipment import Form, Shipment
from tests.support.store.store_batches import copy


def test_a_batch_takes_what_its_rows_take() -> None:
    rows = [copy("one", size=1_000), copy("two", size=2_000)]
    assert Shipment(1, Lane.COPIES, rows, Form.BATCH).size == 3_000 + 2 * RECORD_OVERHEAD


def test_a_question_about_a_large_row_is_small() -> None:
    assert Shipment(1, Lane.COPIES, [copy("large", size=1_000_000)], Form.QUESTION).size == RECORD_OVERHEAD
