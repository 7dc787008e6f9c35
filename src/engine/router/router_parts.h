// The tables and helpers that the router's parts share.
#pragma once

#include "base/clock.h"
#include "core/limits.h"
#include "core/work/task.h"
#include "core/work/work_pool.h"
#include "engine/model/model_table.h"
#include "engine/router/image_intake.h"
#include "engine/router/in_flight.h"
#include "engine/router/prefix_exchange.h"
#include "engine/router/prompt_memory.h"
#include "engine/router/session_access.h"
#include "engine/router/state_exchange.h"
#include "engine/session/session_table.h"
#include "kv/state_store.h"

namespace uma::engine {

// All references outlive the parts.
struct RouterParts {
  const Limits& limits;
  const Clock& clock;
  kv::StateStore& store;
  WorkPool& work;
  TaskRunner& tasks;
  ModelTable& models;
  SessionTable& sessions;
  InFlightTable& in_flight;
  ImageIntake& images;
  SessionAccess& access;
  StateExchange& exchange;
  PrefixExchange& prefixes;
  PromptMemory& prompts;
};

}  // namespace uma::engine
