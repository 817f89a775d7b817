"""Random function declarations for the synthetic corpus, the arguments that fit them and the
results that they might give."""

import json
from random import Random
from typing import Any, NamedTuple

from engine.demo.knowledge import SKIES, listed
from engine.demo.words import any_word

Schema = dict[str, Any]


class Purpose(NamedTuple):
    """A family of functions that do one thing under many names."""

    name: str
    names: tuple[str, ...]
    held_names: tuple[str, ...]
    nouns: tuple[str, ...]
    descriptions: tuple[str, ...]
    keys: tuple[str, ...]


class Tool(NamedTuple):
    """A declared function. `subject` is the parameter that takes what the user asks about."""

    purpose: str
    name: str
    description: str
    parameters: Schema
    subject: str


WEATHER = Purpose(
    "weather",
    listed(
        "get_weather get_current_weather lookup_weather fetch_weather weather get_forecast "
        "current_weather weather_lookup check_weather getWeather query_weather get_temperature "
        "weather_api get_weather_forecast getCurrentWeather weather_report find_weather "
        "show_weather get_conditions weather_now get_local_weather city_weather weather_tool "
        "read_weather retrieve_weather get_weather_for_city get_weather_data"
    ),
    listed(
        "get_city_weather weather_forecast load_weather search_weather weather_info "
        "get_weather_report check_forecast"
    ),
    listed("weather weather weather forecast temperature conditions climate weather_report"),
    (
        "Get the weather for a city.",
        "Get the current weather in a given location",
        "Get current weather",
        "Look up the current weather.",
        "Returns the weather for a place",
        "Get weather",
        "Current temperature and sky at a location.",
        "Get current temperature for a given location.",
        "Weather in a city",
        "Fetches the weather forecast for a town.",
        "",
    ),
    ("city", "location", "place", "city_name", "town", "address", "name"),
)
TIME = Purpose(
    "time",
    listed("get_time current_time get_current_time world_clock local_time time_in clock"),
    listed("get_local_time lookup_time"),
    listed("time time local_time clock current_time"),
    ("Get the current time.", "Get the local time of a city.", "Time at a place", ""),
    ("city", "location", "place"),
)
SEARCH = Purpose(
    "search",
    listed("search web_search search_web find_online internet_search do_search"),
    listed("search_internet web_lookup"),
    listed("search search web_search internet"),
    ("Search the web.", "Search the internet for a query", "Find pages on the web.", ""),
    ("query", "q", "search_query", "text"),
)
VERBS = listed(
    "get fetch lookup check query find read show load retrieve request ask tell run call"
)
PURPOSES = (WEATHER, TIME, SEARCH)

SUBJECT_DESCRIPTIONS = (
    "City name",
    "The city and state, e.g. San Francisco, CA",
    "Name of the city",
    "The location",
    "A place name, for example Paris",
    "City and country e.g. Bogotá, Colombia",
    "The city to look up",
    "",
)
UNITS = (["celsius", "fahrenheit"], ["fahrenheit", "celsius"], ["c", "f"], ["metric", "imperial"])

_TEXT: Schema = {"type": "string"}
_DISTRACTORS: tuple[tuple[str, str, Schema], ...] = (
    ("send_email", "Send an email.", {"to": _TEXT, "subject": _TEXT, "body": _TEXT}),
    ("calculate", "Evaluate an expression.", {"expression": _TEXT}),
    ("get_stock_price", "Get a stock price.", {"symbol": _TEXT}),
    ("create_event", "Add an event to the calendar.", {"title": _TEXT, "date": _TEXT}),
    ("list_files", "List the files of a folder.", {"path": _TEXT}),
    ("read_file", "Read a file.", {"path": _TEXT, "limit": {"type": "integer"}}),
    ("write_file", "Write a file.", {"path": _TEXT, "content": _TEXT}),
    ("run_command", "Run a shell command.", {"command": _TEXT, "timeout": {"type": "number"}}),
    ("book_flight", "Book a flight.", {"from": _TEXT, "to": _TEXT, "date": _TEXT}),
    ("play_music", "Play a song.", {"song": _TEXT}),
    ("set_alarm", "Set an alarm.", {"hour": {"type": "integer"}, "label": _TEXT}),
    ("get_user", "Look up a user.", {"id": {"type": "integer"}}),
    ("update_plan", "Update the plan.", {"steps": {"type": "array", "items": _TEXT}}),
    ("turn_on_light", "Switch a light.", {"room": _TEXT, "on": {"type": "boolean"}}),
)


def distractor(r: Random) -> Tool:
    """A function that no question of the corpus needs."""
    name, description, properties = r.choice(_DISTRACTORS)
    required = [key for key in properties if r.random() < 0.7]
    parameters = {"type": "object", "properties": properties, "required": required}
    return Tool("", name, description, parameters, "")


def tool(r: Random, purpose: Purpose, held: bool) -> Tool:
    """A function of this purpose, under a held-out name if `held`."""
    name = r.choice(purpose.held_names) if held else _name(r, purpose)
    description = r.choice(purpose.descriptions)
    subject = r.choice(purpose.keys)
    if not held and r.random() < 0.35:
        subject = any_word(r).lower()
    schema = dict(_TEXT)
    if r.random() < 0.6:
        schema["description"] = r.choice(SUBJECT_DESCRIPTIONS)
    properties = [(subject, schema, True)]
    if purpose is WEATHER:
        properties += _weather_options(r)
    if r.random() < 0.2:
        r.shuffle(properties)
    parameters: Schema = {
        "type": "object",
        "properties": {key: value for key, value, _ in properties},
        "required": [key for key, _, needed in properties if needed],
    }
    if r.random() < 0.4:
        parameters["additionalProperties"] = False
    return Tool(purpose.name, name, description, parameters, subject)


def _name(r: Random, purpose: Purpose) -> str:
    """A usual name or, mostly, one that has to be copied because it never comes again."""
    name = r.choice(purpose.names)
    if r.random() < 0.55:
        verb = any_word(r).lower() if r.random() < 0.4 else r.choice(VERBS)
        noun = r.choice(purpose.nouns)
        extra = any_word(r).lower()
        patterns = (
            "{v}_{n}",
            "{n}_{v}",
            "{v}_{x}_{n}",
            "{v}_{n}_{x}",
            "{v}{N}",
            "{x}_{n}",
            "{n}_{x}",
        )
        pattern = r.choice(patterns)
        name = pattern.format(v=verb, n=noun, N=noun.capitalize(), x=extra)
    return _name(r, purpose) if name in purpose.held_names else name


def _weather_options(r: Random) -> list[tuple[str, Schema, bool]]:
    options: list[tuple[str, Schema, bool]] = []
    if r.random() < 0.4:
        unit: Schema = {"type": "string", "enum": r.choice(UNITS)}
        if r.random() < 0.3:
            unit["description"] = "The unit of the temperature."
        options.append((r.choice(("unit", "units", "format")), unit, r.random() < 0.6))
    if r.random() < 0.12:
        options.append(("days", {"type": "integer"}, r.random() < 0.5))
    return options


def units(declared: Tool) -> list[str]:
    """The values of the tool's unit parameter, if it has one."""
    for schema in declared.parameters["properties"].values():
        if "enum" in schema:
            values: list[str] = schema["enum"]
            return values
    return []


def arguments(declared: Tool, subject: str, unit: str | None) -> str:
    """The call's JSON: the subject, a unit where it is required or wished for, one day."""
    required = declared.parameters["required"]
    values: dict[str, str | int] = {}
    for key, schema in declared.parameters["properties"].items():
        if key == declared.subject:
            values[key] = subject
        elif "enum" in schema:
            if unit is not None or key in required:
                values[key] = unit or schema["enum"][0]
        elif key in required:
            values[key] = 1
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def fits(parameters: Schema, text: str) -> bool:
    """Whether text is a JSON object that satisfies the flat schema `parameters`."""
    try:
        values = json.loads(text)
    except ValueError:
        return False
    properties = parameters["properties"]
    return (
        isinstance(values, dict)
        and values.keys() <= properties.keys()
        and set(parameters["required"]) <= values.keys()
        and all(_value_fits(properties[key], value) for key, value in values.items())
    )


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
}


def _value_fits(schema: Schema, value: object) -> bool:
    if isinstance(value, bool) and schema["type"] != "boolean":
        return False
    return isinstance(value, _TYPES[schema["type"]]) and value in schema.get("enum", [value])


def weather(r: Random, city: str) -> str:
    """What a weather function might return."""
    sky = r.choice(SKIES) if r.random() < 0.7 else any_word(r)
    degrees: int | float = r.randrange(-15, 45)
    if r.random() < 0.1:
        degrees = round(degrees + r.randrange(1, 10) / 10, 1)
    if r.random() < 0.35:
        return r.choice(_REPORTS).format(d=degrees, s=sky, c=city)
    fields: dict[str, str | int | float] = {
        r.choice(("temperature", "temp", "temp_c", "temperature_c", "degrees")): degrees,
        r.choice(("sky", "condition", "conditions", "description", "weather", "summary")): sky,
    }
    more = (("city", city), ("location", city), ("unit", "celsius"), ("humidity", r.randrange(99)))
    fields |= {key: value for key, value in more if r.random() < 0.1}
    items = list(fields.items())
    if r.random() < 0.5:
        r.shuffle(items)
    separators = r.choice(((",", ":"), (", ", ": ")))
    return json.dumps(dict(items), separators=separators, ensure_ascii=False)


_REPORTS = (
    "{d} C, {s}",
    "{d} degrees, {s}",
    "{d} degrees and {s}",
    "{s}, {d} C",
    "{s}, {d}°C",
    "{s} and {d} degrees",
    "It is {d} degrees and {s}.",
    "{s} {d}",
    "{c}: {s}, {d} degrees",
    "{d}°C and {s}",
)


def clock(r: Random, city: str) -> str:
    """What a clock might return."""
    time = f"{r.randrange(24):02}:{r.randrange(60):02}"
    fields = {"city": city, "time": time} if r.random() < 0.5 else {"time": time}
    return r.choice((time, json.dumps(fields, ensure_ascii=False)))
