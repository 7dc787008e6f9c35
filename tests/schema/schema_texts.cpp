// What the grammars of JSON Schemas hold, for tests/e2e/test_schemas.py, which asks a validator about it. One JSON object a
// line on standard input: {"schema": ..., "texts": ["..."], "samples": n, "seed": n}. For each one a line: {"error": "..."}, or
// {"accepted": [true, ...], "samples": ["..."], "left_out": ["..."]}: which texts the grammar has, texts that a model says
// which chooses by chance (those of them that came to an end), and the keywords that it does not enforce.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/random.h"
#include "grammar/grammar.h"
#include "grammar/json_schema.h"
#include "llm/sampling/sampler.h"
#include "llm/sampling/token_constraint.h"
#include "testing/fake_model.h"

namespace {

constexpr int kTokensMax = 2000;

// Ends come more often than other bytes, so that most texts end.
std::string sample(const std::shared_ptr<const uma::grammar::Grammar>& grammar, std::uint64_t seed) {
  static const uma::testing::FakeVocab vocab;
  uma::SamplingParams params;
  params.temperature = 1;
  for (const char c : std::string("\"]},:")) params.logit_bias.emplace_back(static_cast<unsigned char>(c), 4.0f);
  uma::llm::Sampler sampler(params, seed, {});
  sampler.constrain(std::make_unique<uma::llm::TokenConstraint>(grammar, vocab));
  uma::Random random(seed);
  std::string text;
  std::vector<float> logits(static_cast<std::size_t>(vocab.size()));
  for (int i = 0; i < kTokensMax; ++i) {
    for (float& logit : logits) logit = static_cast<float>(random.next_unit() * 3);
    logits[static_cast<std::size_t>(uma::testing::kFakeEos)] += 2;
    const uma::Token token = sampler.sample(logits);
    if (token == uma::kNoToken) throw std::runtime_error("a text that cannot go on: " + text);
    if (vocab.is_end_of_generation(token)) return text;
    sampler.accept(token);
    text += vocab.piece(token);
    if (sampler.is_complete()) return text;
  }
  return "";
}

boost::json::object answer(const std::string& line) {
  const boost::json::object request = boost::json::parse(line).as_object();
  uma::grammar::LeftOut left_out;
  const auto grammar = uma::grammar::json_schema_grammar(boost::json::serialize(request.at("schema")), &left_out);
  if (!grammar) return {{"error", grammar.error().message}};
  boost::json::array accepted;
  for (const boost::json::value& text : request.at("texts").as_array()) {
    uma::grammar::GrammarReader reader(*grammar);
    accepted.emplace_back(reader.can_end(reader.next(uma::grammar::GrammarReader::kStart, std::string_view(text.as_string()))));
  }
  boost::json::array samples;
  for (std::int64_t i = 0; i < request.at("samples").as_int64(); ++i) {
    const std::string text = sample(*grammar, static_cast<std::uint64_t>(request.at("seed").as_int64() + i));
    if (!text.empty()) samples.emplace_back(text);
  }
  return {{"accepted", accepted},
          {"samples", samples},
          {"left_out", boost::json::array(left_out.places().begin(), left_out.places().end())}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << boost::json::serialize(answer(line)) << '\n' << std::flush;
    } catch (const std::exception& problem) {
      std::fprintf(stderr, "schema_texts: %s: %s\n", line.c_str(), problem.what());
      return 1;
    }
  }
  return 0;
}
