SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#api",
  validatorUrl: null,
  tryItOutEnabled: true,
  defaultModelsExpandDepth: -1,
});
