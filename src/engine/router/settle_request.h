// Fills in what a request leaves to its model.
#pragma once

#include <stop_token>

#include "core/error.h"
#include "core/ids.h"
#include "core/request.h"
#include "core/work/task.h"
#include "core/work/work_pool.h"
#include "engine/model/model_table.h"

namespace uma::engine {

// Applies the defaults of the model's card, and what its template and its vocabulary make of the options. Long arguments of the
// template, such as documents, and many texts of a bias are read by the work pool. Requires: `lease` holds the request's model.
// Errors: E_PROTO_003 for a template or a token that the model does not have; E_LIMIT_003 if `end` was requested.
[[nodiscard]] Task<Expected<GenerateRequest>> settle(WorkPool& work, TaskRunner& tasks, TenantId tenant, ModelLease lease,
                                                     GenerateRequest request, std::stop_token end = {});

}  // namespace uma::engine
