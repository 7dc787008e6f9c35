// The store of states that daemons share, as the configuration names it.
#pragma once

#include <expected>
#include <memory>
#include <string>

#include "base/clock.h"
#include "kv/shared/shared_states.h"
#include "umad/config.h"

namespace uma::umad {

// The password for `shared_states`, from UMA_SHARED_STATES_PASSWORD or the file that UMA_SHARED_STATES_PASSWORD_FILE names;
// empty: there is none. Error: a file that cannot be read.
[[nodiscard]] std::expected<std::string, std::string> shared_store_password(const Environment& environment);

// Where the configuration shares states, without secrets, for people and to compare it with others': "redis://cache:6379/0",
// "the folder /mnt/states" or "nothing".
[[nodiscard]] std::string shared_states_text(const Config& config);

// Null: the configuration names none. Connects when it is first used. `clock` outlives the result.
[[nodiscard]] std::unique_ptr<kv::SharedStates> open_shared_states(const Config& config, const Clock& clock);

}  // namespace uma::umad
