// Standard input: a JSON array of texts. Standard output: the number of o200k_base tokens of each, as a JSON array.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
const { countTokens } = createRequire(process.argv[2] + "/")("gpt-tokenizer/encoding/o200k_base");
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map((text) => countTokens(text))));
