// Browsers start no workers for pages that are opened as files. There, the search runs in a hidden
// frame. (With a name like this, zensical does not load a script for it from another host.)
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
      this.loaded = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.onload = resolve;
        script.onerror = reject;
        script.src = url;
        inside.document.head.append(script);
      });
      this.loaded.catch((event) => this.onerror?.(event));
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.onmessage({ data }), () => {});
    }

    terminate() {
      this.frame.remove();
    }
  };
}
