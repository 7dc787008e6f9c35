"""What the real models are asked: sixty conversations, and a small examination with answers that a program can judge."""

import json
import re

SYSTEMS = (None, "You are a helpful assistant. Answer in one sentence.", "Reply in plain words.")
ASKED = (
    "What is the capital of France?", "Name three fruits.", "Write a haiku about the sea.", "What is 12 + 30?", "Explain what a list is in Python.",
    "Translate 'good morning' into Spanish.", "Who wrote Hamlet?", "Count from one to five.", "What is water made of?",
    "Give me a title for a story about a lost dog.", "Is the sun a star?", "Write a function that adds two numbers.",
    "What comes after Tuesday?", "Wie heißt die Hauptstadt von Deutschland?", "¿Cuántos días tiene una semana?", "猫は何と鳴きますか。",
    "Say \"hello\" and nothing else.", "What do bees make?", "Fix the spelling: recieve", "List the primary colours.",
)
FOLLOW_UPS = ("Why?", "Say it again in other words.")


def chats():
    """Sixty conversations as lists of messages: of one turn, with a system message, and with an earlier turn."""
    all_chats = []
    for i, text in enumerate(ASKED):
        system = SYSTEMS[i % len(SYSTEMS)]
        begin = [{"role": "system", "content": system}] if system else []
        asked = {"role": "user", "content": text}
        all_chats.append([asked])
        all_chats.append([*begin, {"role": "user", "content": f"{text} Think about it, and keep it short. <|not a mark|> {{}}"}])
        all_chats.append([*begin, asked, {"role": "assistant", "content": f"Here is what I know about that: number {i}."},
                          {"role": "user", "content": FOLLOW_UPS[i % len(FOLLOW_UPS)]}])
    return all_chats


def has(*texts):
    return lambda reply: any(text.lower() in reply.lower() for text in texts)


def is_json_with(**fields):
    def judge(reply):
        found = re.search(r"\{.*\}", reply, re.DOTALL)
        try:
            value = json.loads(found[0]) if found else None
        except ValueError:
            return False
        return isinstance(value, dict) and all(value.get(name) == expected for name, expected in fields.items())
    return judge


# (question, whether a reply is right)
EXAMINATION = (
    ("What is the capital of Italy? Answer with one word.", has("Rome", "Roma")),
    ("What is the capital of Japan? Answer with one word.", has("Tokyo")),
    ("Which planet do we live on? Answer with one word.", has("Earth")),
    ("How many legs does a spider have? Answer with a number.", has("8", "eight")),
    ("What colour is a clear sky by day? Answer with one word.", has("blue")),
    ("What gas do plants take in? Answer in a few words.", has("carbon dioxide", "CO2", "CO₂")),
    ("Who painted the Mona Lisa? Answer with the name.", has("Leonardo", "Vinci")),
    ("What is the opposite of hot? Answer with one word.", has("cold")),
    ("How many days are in a week? Answer with a number.", has("7", "seven")),
    ("Which language is spoken in Brazil? Answer with one word.", has("Portuguese")),
    ("What is 7 + 5? Answer with the number alone.", has("12")),
    ("What is 9 * 3? Answer with the number alone.", has("27")),
    ("What is 20 - 4? Answer with the number alone.", has("16")),
    ("What is half of 50? Answer with the number alone.", has("25")),
    ("What is 100 / 4? Answer with the number alone.", has("25")),
    ("Reply with the JSON object {\"ok\": true} and nothing else.", is_json_with(ok=True)),
    ("Write a JSON object with the key \"name\" and the value \"Ada\".", is_json_with(name="Ada")),
    ("Write the word yes in capital letters, nothing else.", lambda reply: "YES" in reply),
    ("Write a Python function named add that returns the sum of a and b.", lambda reply: "def add(" in reply and "return" in reply),
    ("Write only the first three letters of the alphabet.", has("abc", "a, b, c", "a b c", "a,b,c")),
)

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "add_numbers", "description": "Adds two integers.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"], "additionalProperties": False}}},
]
# (question, the tool that is meant)
TOOL_CHOICES = (
    ("What is the weather in Paris?", "get_weather"), ("Please add 17 and 25 with the tool.", "add_numbers"),
    ("Is it raining in Oslo? Look it up.", "get_weather"), ("Use the tool to compute 3 plus 4.", "add_numbers"),
)

# About a page of text.
PAGE = """\
A lighthouse stands where the land ends and the sea begins. For a hundred years a keeper climbed its stairs every evening, trimmed the wick and
lit the lamp, and every ship that passed in the night counted the seconds between two flashes to learn which lighthouse it was. Then the lamp
became electric and the stairs were climbed once a week. Later a clock switched it on, and the keeper moved to the town, where he repaired
radios. The lighthouse did not mind. It had never known that anybody lived in it. But the ships still count, because instruments fail, and a
captain who has counted once in a storm will count for the rest of his life: one, two, three, four, light. On the maps it is a small star with a
number beside it. Children who visit it on Sundays ask how far one can see from the top. The guide says that on a clear day one can see the
other side of the bay, and that at night the other side of the bay can see you, which is the point of the whole building.
"""
