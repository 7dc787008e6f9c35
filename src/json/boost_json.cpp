// Compiles the functions of Boost.JSON once; elsewhere only its headers are used.
#include <boost/json/src.hpp>
