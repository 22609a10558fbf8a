// Browsers start no worker from a file: URL. There the search runs in a hidden frame with the interface of a worker.
// The theme would load such a script from another host, unless a script of this name is configured.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      // Messages wait until the script listens.
      this.isReady = new Promise((resolve) => (script.onload = resolve));
      frame.contentDocument.body.append(script);
    }

    postMessage(data) {
      this.isReady.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
