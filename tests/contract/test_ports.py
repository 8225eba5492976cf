"""Effects reach the ports that a process has, whatever those hold at the moment."""

from pdd.adapters.bus_memory import MemoryHub
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.effects import Complete, Deliver, RequestReport
from pdd.core.ids import Epoch, Peer, RequestId, Role
from pdd.core.messages import Written
from pdd.core.sampling import Finish
from pdd.ports import Ports
from pdd.sim.world import World
from services.router.open_requests import OpenRequests


def test_what_is_said_to_clients_that_have_all_left_is_dropped() -> None:
    world = World()
    hub = MemoryHub(world, world.rng, lambda sender, receiver: 0.0)
    notes = MemoryNotes()
    router = Peer("a", Role.ROUTER, "router", 1)
    text = OpenRequests()
    assert len(text) == 0
    ports = Ports(hub.bus(router, lambda event: None, notes), notes, text=text)
    request = RequestId("left")
    ports.perform(Deliver(request, Written(request, Epoch(1), 0, (7,)), Role.PREFILL))
    ports.perform(Complete(request, Finish("length"), RequestReport()))
