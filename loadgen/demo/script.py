"""The demo's play: two short conversations of one agent, which share a system prompt and grow by tool results.

The words are plain enough for a very small model, and long enough that a prompt's KV takes seconds on a slow line.
"""

from dataclasses import dataclass

MAX_TOKENS = 64

SYSTEM = """\
You are Atlas, a research assistant for a school. Pupils ask you questions about nature, history and geography. You answer in
one or two short sentences, in plain English, and you use the facts that your tools give you.

You have these tools. You ask for one by its name; the result comes back as a message of the conversation.

search(words): the titles of the ten pages of the school's library that fit the words best, each with one line of text. Use it
first when you do not know which page has the answer. Give two or three words, never a whole sentence.

read_page(title): the text of one page of the library. Pages are written for pupils of twelve years, and are checked by a
teacher. Use it when a question asks for a number, a name or a date, and when a pupil wants to know more about something.

look_at_map(place): where a place lies, which countries, rivers, seas and mountains are near it, how high it is, and how many
people live there. Use it for questions about towns, countries and landscapes.

distance(from, to): the distance between two places in kilometres, by road and as the crow flies, and how long a train takes.

convert(amount, from, to): the same amount in another unit, for example kilometres to miles, litres to gallons, or degrees
Celsius to degrees Fahrenheit. Use it whenever a pupil asks for a unit that the page does not have. Do not compute by hand.

timeline(topic): the ten most important events of a topic, each with its year, in the order in which they happened. Use it for
questions that begin with when, and for questions that ask what came first.

draw_chart(title, numbers): a bar chart of a few numbers, which the pupil sees beside the conversation.

spell(word): how a word is spelled, where it comes from, and how it is pronounced. Use it for names of people and places, too, and
when a pupil has written a word in a wrong way.

save_note(text): keeps a note in the pupil's folder. Use it when a pupil says that something is important or will be in a test.

How you work: read the question, decide whether you know the answer, and take a tool when you do not. When a tool's result
answers the question, give the answer and stop. Explain a difficult word the first time you use it. Be kind, be brief, and do
not guess. If a pupil asks for something that is not about school, say in one sentence that you cannot help with it.
"""

CHLOROPHYLL = """\
Result of read_page("Chlorophyll"):
Chlorophyll is the green pigment in the leaves of plants. It takes in the red and the blue part of sunlight and sends the green
part back, so we see leaves as green. In autumn many trees break their chlorophyll down, and yellow and orange pigments that were
there all the time become visible.

"""

CARBON_CYCLE = """\
Result of read_page("Carbon cycle"):
Carbon moves between the air, living things, the soil and the sea. Plants take carbon dioxide out of the air and build sugar and
wood from it. Animals eat plants and breathe carbon dioxide out again. When plants and animals die, bacteria and fungi break them
down, and most of their carbon goes back into the air. A small part is buried. Over millions of years it turned into coal, oil and
gas.
The sea takes in carbon dioxide at its surface. Tiny floating plants use it, and some of it sinks to the bottom as shells, which
become limestone. Volcanoes bring a little of it back.
For thousands of years as much carbon went into the air as came out of it. Since people burn coal, oil and gas, more goes in than
comes out. The amount of carbon dioxide in the air has risen by about half since the year 1800, and the air has become warmer.
Forests help, because a growing tree takes up carbon. When a forest is cut down and burnt, its carbon goes back into the air within
days.

"""

NILE = """\
Result of read_page("Nile"):
The Nile is a river in Africa. It is about 6,650 kilometres long and flows north through eleven countries. Its two main branches,
the White Nile and the Blue Nile, meet at Khartoum in Sudan. It ends in Egypt, where it flows into the Mediterranean Sea.

"""

# They share no prefix with the conversations, nor with each other.
WARM_UPS = ("Tell me what a harbour is. " * 20, "Say how a bridge is built. " * 20)


@dataclass(frozen=True, slots=True)
class Turn:
    """The client's next message of a conversation; the answer is appended to the history as it came."""

    conversation: str
    content: str

    @property
    def question(self) -> str:
        return self.content.rpartition("\n")[2]

    @property
    def brings_result(self) -> bool:
        """The message carries a tool's result before its question."""
        return self.question != self.content


# The conversations alternate, as two pupils' would.
TURNS = (
    Turn("leaves", "What is photosynthesis?"),
    Turn("leaves", CHLOROPHYLL + "Why are leaves green?"),
    Turn("rivers", "What is the longest river in Africa?"),
    Turn("leaves", CARBON_CYCLE + "Where does the carbon of a plant go when the plant dies?"),
    Turn("rivers", NILE + "How long is the Nile, and where does it end?"),
)
