// OpenAI's Node SDK: one chat. Arguments: node_modules, address, model, "stream" or "whole".
import { createRequire } from "node:module";

const [modules, base, model, mode] = process.argv.slice(2);
const OpenAI = createRequire(`${modules}/x`)("openai").default;
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "sk-x" });
const ask = { model, messages: [{ role: "user", content: "hi" }] };
let text = "", error = null;
try {
  if (mode === "stream")
    for await (const chunk of await client.chat.completions.create({ ...ask, stream: true }))
      text += chunk.choices[0]?.delta?.content ?? "";
  else text = (await client.chat.completions.create(ask)).choices[0].message.content;
} catch (err) {
  error = { class: err.constructor.name, code: err.code ?? null, text: String(err.message) };
}
console.log(JSON.stringify({ text, error }));
