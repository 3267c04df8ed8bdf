// A simulated CUDA runtime library, for the module that calls the real one on a machine without a GPU.
//
// The device's memory is this process's. What is put into a stream is done when somebody waits for it, so that who
// forgets to gets old bytes; while a stream is captured it is kept, and done by launching the graph of it. Waiting for
// a stream that is captured fails as CUDA's does, and so does ending that capture then. It knows what a module like
// `appliance/devices/cuda.py` calls of memory, streams, events and graphs, and for a simulated library that computes
// `simulatedPut` and `simulatedIsCapturing`. One thread at a time.
//
// A thread that was told of no device is on the first one, and makes a context there by whatever it asks, as CUDA's
// documentation has it: `simulatedStrays` counts those calls.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace {

using Work = std::vector<std::function<void()>>;

constexpr int SUCCESS = 0;
constexpr int INVALID_VALUE = 1;
constexpr int OUT_OF_MEMORY = 2;
constexpr int INVALID_DEVICE = 101;
constexpr int INVALID_HANDLE = 400;
constexpr int NOT_READY = 600;
constexpr int CAPTURE_UNSUPPORTED = 900;
constexpr int CAPTURE_INVALIDATED = 901;
constexpr size_t TOTAL_BYTES = size_t{1} << 30;

struct Stream {
    std::deque<std::function<void()>> begun;
    Work kept;
    bool capturing = false;
    bool spoilt = false;
};

struct Event {
    bool happened = true;
    void* stream = nullptr;
};

std::map<void*, size_t> taken;
std::map<void*, Event*> events;
std::map<void*, Stream*> streams;
std::map<void*, Work*> graphs;
std::map<void*, Work*> executables;
int last = SUCCESS;
int strays = 0;
thread_local bool told = false;

void touch() { strays += !told; }

int fail(int status) {
    last = status;
    return status;
}

size_t free_bytes() {
    size_t left = TOTAL_BYTES;
    for (auto const& each : taken)
        left -= each.second;
    return left;
}

Stream* known(void* stream) {
    auto found = streams.find(stream);
    return found == streams.end() ? nullptr : found->second;
}

int put(void* handle, std::function<void()> work) {
    auto* stream = known(handle);
    if (stream == nullptr)
        return fail(INVALID_HANDLE);
    if (stream->capturing)
        stream->kept.push_back(std::move(work));
    else
        stream->begun.push_back(std::move(work));
    return SUCCESS;
}

bool do_first(Stream* stream) {
    if (stream == nullptr || stream->begun.empty())
        return false;
    auto work = std::move(stream->begun.front());
    stream->begun.pop_front();
    work();
    return true;
}

int give_back(std::map<void*, Work*>& all, void* handle) {
    auto found = all.find(handle);
    if (found == all.end())
        return fail(INVALID_VALUE);
    delete found->second;
    all.erase(found);
    return SUCCESS;
}

} // namespace

extern "C" {

int simulatedPut(void* stream, void (*work)(void*), void (*drop)(void*), void* about) {
    std::shared_ptr<void> held(about, drop);
    return put(stream, [work, held] { work(held.get()); });
}

int simulatedIsCapturing(void* stream) { return known(stream) != nullptr && known(stream)->capturing; }

// SIMULATED_COUNT=35:12040 in the environment: counting ends with that error, beside a driver of that release.
int cudaGetDeviceCount(int* count) {
    int status = SUCCESS;
    if (const char* said = std::getenv("SIMULATED_COUNT"))
        std::sscanf(said, "%d", &status);
    *count = status == SUCCESS ? 1 : 0;
    return status;
}

int cudaDriverGetVersion(int* release) {
    *release = 13000;
    if (const char* said = std::getenv("SIMULATED_COUNT"))
        std::sscanf(said, "%*d:%d", release);
    return SUCCESS;
}

int cudaSetDevice(int index) {
    if (index != 0)
        return fail(INVALID_DEVICE);
    told = true;
    return SUCCESS;
}

int cudaThreadExchangeStreamCaptureMode(int*) {
    touch();
    return SUCCESS;
}

int cudaMalloc(void** address, size_t nbytes) {
    touch();
    if (nbytes > free_bytes())
        return fail(OUT_OF_MEMORY);
    *address = std::aligned_alloc(256, (nbytes + 255) / 256 * 256);
    taken[*address] = nbytes;
    return SUCCESS;
}

int cudaFree(void* address) {
    touch();
    if (address == nullptr)
        return SUCCESS;
    if (!taken.erase(address))
        return fail(INVALID_VALUE);
    std::free(address);
    return SUCCESS;
}

int cudaHostAlloc(void** address, size_t nbytes, unsigned) {
    touch();
    *address = std::malloc(nbytes);
    return SUCCESS;
}

int cudaFreeHost(void* address) {
    touch();
    std::free(address);
    return SUCCESS;
}

int cudaMemGetInfo(size_t* free, size_t* total) {
    touch();
    *free = free_bytes();
    *total = TOTAL_BYTES;
    return SUCCESS;
}

int cudaMemcpyAsync(void* to, void const* from, size_t nbytes, int, void* stream) {
    touch();
    return put(stream, [=] { std::memcpy(to, from, nbytes); });
}

int cudaMemsetAsync(void* to, int value, size_t nbytes, void* stream) {
    touch();
    return put(stream, [=] { std::memset(to, value, nbytes); });
}

int cudaEventCreateWithFlags(void** event, unsigned) {
    touch();
    *event = new Event;
    events[*event] = static_cast<Event*>(*event);
    return SUCCESS;
}

int cudaEventDestroy(void* event) {
    touch();
    auto found = events.find(event);
    if (found == events.end())
        return fail(INVALID_HANDLE);
    delete found->second;
    events.erase(found);
    return SUCCESS;
}

int cudaEventRecord(void* event, void* stream) {
    touch();
    if (!events.count(event))
        return fail(INVALID_HANDLE);
    events[event]->happened = false;
    events[event]->stream = stream;
    return put(stream, [event] {
        if (events.count(event))
            events[event]->happened = true;
    });
}

// Who asks again and again sees the stream go on.
int cudaEventQuery(void* event) {
    touch();
    if (!events.count(event))
        return fail(INVALID_HANDLE);
    if (events[event]->happened)
        return SUCCESS;
    do_first(known(events[event]->stream));
    return NOT_READY;
}

int cudaEventSynchronize(void* event) {
    touch();
    if (!events.count(event))
        return fail(INVALID_HANDLE);
    while (!events[event]->happened && do_first(known(events[event]->stream))) {
    }
    return SUCCESS;
}

int cudaStreamCreateWithFlags(void** stream, unsigned) {
    touch();
    *stream = new Stream;
    streams[*stream] = static_cast<Stream*>(*stream);
    return SUCCESS;
}

int cudaStreamDestroy(void* handle) {
    touch();
    auto* stream = known(handle);
    if (stream == nullptr)
        return fail(INVALID_HANDLE);
    streams.erase(handle);
    delete stream;
    return SUCCESS;
}

int cudaStreamSynchronize(void* handle) {
    touch();
    if (handle == nullptr) {
        // a broader handle than one stream: CUDA may refuse it while any is captured
        for (auto& each : streams)
            if (each.second->capturing)
                return fail(CAPTURE_UNSUPPORTED);
        return SUCCESS;
    }
    auto* stream = known(handle);
    if (stream == nullptr)
        return fail(INVALID_HANDLE);
    if (stream->capturing) {
        stream->spoilt = true;
        return fail(CAPTURE_UNSUPPORTED);
    }
    while (do_first(stream)) {
    }
    return SUCCESS;
}

int cudaStreamBeginCapture(void* handle, int) {
    touch();
    auto* stream = known(handle);
    if (stream == nullptr || stream->capturing)
        return fail(stream == nullptr ? INVALID_HANDLE : CAPTURE_UNSUPPORTED);
    stream->capturing = true;
    return SUCCESS;
}

int cudaStreamEndCapture(void* handle, void** graph) {
    touch();
    auto* stream = known(handle);
    if (stream == nullptr || !stream->capturing)
        return fail(INVALID_VALUE);
    Work kept;
    kept.swap(stream->kept);
    bool spoilt = stream->spoilt;
    stream->capturing = stream->spoilt = false;
    if (spoilt)
        return fail(CAPTURE_INVALIDATED);
    auto* made = new Work(std::move(kept));
    graphs[made] = made;
    *graph = made;
    return SUCCESS;
}

int cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
    touch();
    if (!graphs.count(graph))
        return fail(INVALID_VALUE);
    auto* made = new Work(*graphs[graph]);
    executables[made] = made;
    *executable = made;
    return SUCCESS;
}

int cudaGraphLaunch(void* executable, void* stream) {
    touch();
    if (!executables.count(executable))
        return fail(INVALID_VALUE);
    int status = SUCCESS;
    for (auto const& each : *executables[executable])
        status = status == SUCCESS ? put(stream, each) : status;
    return status;
}

int cudaGraphDestroy(void* graph) {
    touch();
    return give_back(graphs, graph);
}

int cudaGraphExecDestroy(void* executable) {
    touch();
    return give_back(executables, executable);
}

int cudaGetLastError() {
    int status = last;
    last = SUCCESS;
    return status;
}

char const* cudaGetErrorString(int status) {
    switch (status) {
    case OUT_OF_MEMORY:
        return "out of memory";
    case CAPTURE_UNSUPPORTED:
        return "operation not permitted when stream is capturing";
    case CAPTURE_INVALIDATED:
        return "operation failed due to a previous error during capture";
    default:
        return "invalid argument";
    }
}

int simulatedStrays() { return strays; }

// For tests: what was not given back.
int simulatedHeld() {
    return static_cast<int>(taken.size() + streams.size() + events.size() + graphs.size() + executables.size());
}
}
