// A page that is opened as a file may start no worker. Search then works in a hidden frame, which takes and gives the same messages.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inner = frame.contentWindow
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.inner.document.createElement("script")
      this.loaded = new Promise((resolve) => script.addEventListener("load", resolve))
      script.src = url
      this.inner.document.body.append(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
