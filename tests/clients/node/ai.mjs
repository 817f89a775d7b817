// The AI SDK: `node ai.mjs URL MODEL PROVIDER TASK QUESTION RESULT` prints what it has seen as JSON.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const [url, name, provider, task, question, result] = process.argv.slice(2);
const baseURL = `${url}/v1`;
const apiKey = "none";
const models = {
  openai: () => createOpenAI({ baseURL, apiKey }).responses(name),
  "openai-chat": () => createOpenAI({ baseURL, apiKey }).chat(name),
  "open-responses": () => createOpenResponses({ name: "a", url: `${baseURL}/responses`, apiKey })(name),
  "openai-compatible": () => createOpenAICompatible({ name: "a", baseURL, apiKey, includeUsage: true })(name),
  anthropic: () => createAnthropic({ baseURL, apiKey })(name),
};
const model = models[provider]();
const called = [];
const tools = {
  get_weather: tool({
    description: "Get the current weather for a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async (input) => {
      called.push(input);
      return result;
    },
  }),
};

async function text() {
  const asked = task === "tools" ? { tools, stopWhen: isStepCount(3) } : {};
  const stream = streamText({ model, prompt: question, maxRetries: 0, onError: () => {}, ...asked });
  const parts = [];
  const errors = [];
  for await (const part of stream.fullStream) {
    parts.push(part.type);
    if (part.type === "error") errors.push(String(part.error?.message ?? JSON.stringify(part.error)));
  }
  if (errors.length > 0) return { parts, errors };
  return {
    parts,
    called,
    text: await stream.text,
    finish: await stream.finishReason,
    steps: (await stream.steps).length,
    reasoning: (await stream.steps).map((step) => step.reasoningText ?? ""),
    usage: await stream.totalUsage,
  };
}

async function object() {
  const schema = z.object({ city: z.string(), population: z.number().int() });
  const { output } = await generateText({
    model,
    prompt: question,
    maxRetries: 0,
    output: Output.object({ schema }),
  });
  return { output };
}

try {
  console.log(JSON.stringify(await (task === "object" ? object() : text())));
} catch (error) {
  console.log(JSON.stringify({ thrown: error.constructor.name, message: error.message }));
}
