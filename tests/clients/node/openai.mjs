// OpenAI's Node SDK: `node openai.mjs URL MODEL API TASK QUESTION` prints what it has seen as JSON.
import OpenAI from "openai";

const [url, model, api, task, question] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

async function responses() {
  const tools = [{ type: "function", name: "get_weather", strict: false, parameters }];
  const events = [];
  const stream = client.responses
    .stream({ model, input: question, ...(task === "tools" ? { tools } : {}) })
    .on("event", (event) => events.push(event.type));
  const final = await stream.finalResponse();
  const whole = await client.responses.retrieve(final.id);
  return {
    events,
    text: final.output_text,
    calls: final.output.filter((item) => item.type === "function_call"),
    ids: final.output.map((item) => item.id),
    retrieved: whole.output.map((item) => item.id),
    status: final.status,
    usage: final.usage,
  };
}

async function chat() {
  const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
  const stream = client.chat.completions.stream({
    model,
    messages: [{ role: "user", content: question }],
    stream_options: { include_usage: true },
    ...(task === "tools" ? { tools } : {}),
  });
  const final = await stream.finalChatCompletion();
  const [choice] = final.choices;
  return {
    text: choice.message.content,
    calls: choice.message.tool_calls ?? [],
    finish: choice.finish_reason,
    usage: final.usage,
  };
}

try {
  console.log(JSON.stringify(await (api === "responses" ? responses() : chat())));
} catch (error) {
  console.log(JSON.stringify({ error: error.constructor.name, message: error.message }));
}
